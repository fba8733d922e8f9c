package loglevel

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// Default is the component of lines that have none.
const Default = "default"

// key is the attribute that has the name of a component.
const key = "component"

// Component is one component with its log level: debug, info, warn or error.
type Component struct {
	Name  string `json:"component"`
	Level string `json:"level"`
}

// Change asks for other levels.
type Change struct {
	// Levels are set after the reset. The component "" means all components, and those that
	// begin to log later.
	Levels []Component `json:"levels,omitempty"`
	// Reset sets all components to the level of the start.
	Reset bool `json:"reset,omitempty"`
}

// Levels are the log levels of one process.
type Levels struct {
	start slog.Level

	mu     sync.Mutex // guards what is below; the levels in it are read without it
	others slog.Level // of components that begin to log later
	by     map[string]*slog.LevelVar
}

// New starts with one level for all components.
func New(level slog.Level) *Levels {
	l := &Levels{start: level, others: level, by: map[string]*slog.LevelVar{}}
	l.of(Default)
	return l
}

// of is the level of a component. Components are constants of the code, so there are few.
func (l *Levels) of(name string) *slog.LevelVar {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.by[name]
	if v == nil {
		v = &slog.LevelVar{}
		v.Set(l.others)
		l.by[name] = v
	}
	return v
}

// List lists all components that have a logger, sorted by name.
func (l *Levels) List() []Component {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Component, 0, len(l.by))
	for name, v := range l.by {
		out = append(out, Component{Name: name, Level: strings.ToLower(v.Level().String())})
	}
	slices.SortFunc(out, func(a, b Component) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Set changes levels: all that the change says, or nothing with an error that names what is wrong.
func (l *Levels) Set(c Change) error {
	levels := make([]slog.Level, len(c.Levels))
	for i, one := range c.Levels {
		level, err := Parse(one.Level)
		if err != nil {
			return err
		}
		levels[i] = level
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range c.Levels {
		if _, known := l.by[one.Name]; one.Name != "" && !known {
			return fmt.Errorf("there is no component %q: `fairlead log-level` lists them", one.Name)
		}
	}
	if c.Reset {
		l.all(l.start)
	}
	for i, one := range c.Levels {
		if one.Name == "" {
			l.all(levels[i])
		} else {
			l.by[one.Name].Set(levels[i])
		}
	}
	return nil
}

// all sets every level. l.mu is held.
func (l *Levels) all(level slog.Level) {
	l.others = level
	for _, v := range l.by {
		v.Set(level)
	}
}

// Text is a list of components as people write it: pki:info,xds:debug.
func Text(list []Component) string {
	out := make([]string, len(list))
	for i, c := range list {
		out[i] = c.Name + ":" + c.Level
	}
	return strings.Join(out, ",")
}

// Read reads what a person writes: LEVEL for all components, or COMPONENT:LEVEL, several with
// commas. It does not know which components and levels there are.
func Read(text string) (list []Component, err error) {
	for item := range strings.SplitSeq(text, ",") {
		name, level, named := strings.Cut(strings.TrimSpace(item), ":")
		if !named {
			name, level = "", name
		}
		if level == "" || named && name == "" {
			return nil, fmt.Errorf("%q is no log level: write LEVEL or NAME:LEVEL, several with commas", item)
		}
		list = append(list, Component{Name: name, Level: level})
	}
	return list, nil
}

// Parse reads the name of a level.
func Parse(level string) (slog.Level, error) {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(level, l.String()) {
			return l, nil
		}
	}
	return 0, fmt.Errorf("there is no log level %q: choose debug, info, warn or error", level)
}

// Handler hands lines to next, if the level of their component lets them pass. Whether next
// is enabled for a level does not count.
func (l *Levels) Handler(next slog.Handler) slog.Handler {
	return &handler{levels: l, level: l.of(Default), next: next}
}

type handler struct {
	levels *Levels
	level  *slog.LevelVar
	next   slog.Handler
	group  bool // attributes are in a group, so that none is the component
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

func (h *handler) Handle(ctx context.Context, r slog.Record) error { return h.next.Handle(ctx, r) }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.next = h.next.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == key && !h.group {
			out.level = h.levels.of(a.Value.String())
		}
	}
	return &out
}

func (h *handler) WithGroup(name string) slog.Handler {
	out := *h
	out.next, out.group = h.next.WithGroup(name), h.group || name != ""
	return &out
}
