package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// boundReport is what sources that are bound to namespaces have, what their objects ask for, and what an upgrade
// would take.
type boundReport struct {
	Sources []boundSource `json:"sources"`
	// Errors are objects that are kept out for other reasons; analyze lists them.
	Errors int `json:"errors"`
	// Upgrade is set if a state directory was read.
	Upgrade *upgradeReport `json:"upgrade,omitempty"`
}

type boundSource struct {
	Source     string     `json:"source"`
	Namespaces []string   `json:"namespaces"`
	Has        []boundHas `json:"has"`
	Asks       []boundAsk `json:"asks"`

	binding *mesh.Binding
}

type boundHas struct {
	Name string `json:"name"`
	For  string `json:"for"`
	By   string `json:"by"`
}

// boundAsk is what an object asks for.
type boundAsk struct {
	Name      string `json:"name"`
	For       string `json:"for"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Object    string `json:"object"`
	File      string `json:"file"`
	Line      int    `json:"line"`
	Column    int    `json:"column"`
	// By is what gives it; empty if nothing does. Then Owner is whose it is, and Flag gives it, if a flag does.
	By     string `json:"by,omitempty"`
	Owner  string `json:"owner,omitempty"`
	Flag   string `json:"flag,omitempty"`
	Advice string `json:"advice,omitempty"`
	// Granted says that it is given by host-grants.json, until settings give it.
	Granted bool `json:"granted,omitempty"`

	source *mesh.Binding
	ask    mesh.Ask
	// pattern is that of the flag, if it is another name than that of the ask.
	pattern mesh.Hostname
}

// What is asked for besides names.
const (
	forSize = "size"
	forPath = "address, file or socket"
)

func askOf(b *mesh.Binding, a mesh.Ask) boundAsk {
	x := boundAsk{
		Name: string(a.Name), For: a.For, Kind: string(a.Key.Kind), Namespace: a.Key.Namespace, Object: a.Key.Name,
		By: a.By, Owner: a.Owner, Flag: a.Advice.Flag, Advice: a.Advice.Text, Granted: a.Granted != "", source: b, ask: a,
	}
	if a.Origin != nil {
		x.File, x.Line, x.Column = a.Origin.Path, a.Origin.Line, a.Origin.Column
	}
	return x
}

// analyzeBound is analyze --bound.
func (t *tree) analyzeBound(w io.Writer, output string, settings *mesh.MeshConfig, stateDir string, hostsOnly bool) error {
	if len(t.bindings) == 0 {
		return errors.New("--bound: nothing is bound to a namespace: write DIR=NAMESPACE, or --consul-kv-prefix PREFIX=NAMESPACE, as the server has it")
	}
	var owners *server.Owners
	if stateDir != "" {
		entries, err := savedVersions(stateDir)
		if err != nil {
			return err
		}
		o, err := server.ReadOwners(stateDir)
		if err != nil {
			return fmt.Errorf("--state-dir: %w", err)
		}
		if hostsOnly {
			o.Recorded = nil // no record counts where there were patterns alone
		}
		owners = &o
		t.restore(entries)
	}
	r := t.boundReport(settings, owners)
	if err := r.write(w, output); err != nil {
		return err
	}
	if r.hasErrors() {
		return errInvalid
	}
	return nil
}

// boundReport makes the report. owners is nil without a state directory.
func (t *tree) boundReport(settings *mesh.MeshConfig, owners *server.Owners) boundReport {
	in := t.input(settings)
	without := mesh.Merge(in)
	with := without
	var grants *mesh.Grants
	if owners != nil {
		switch {
		case owners.Made:
			grants = mesh.NewGrants(owners.Grants)
		case owners.Recorded != nil:
			grants = mesh.NewGrants(mesh.InheritGrants(in, owners.Recorded))
		}
		in.Grants = grants
		with = mesh.Merge(in)
	}
	var r boundReport
	faults := t.faultAsks()
	r.Errors = len(slices.DeleteFunc(slices.Clone(t.Faults), func(f manifest.Fault) bool { return f.Severity != manifest.Error || isLimit(f) }))
	for _, s := range with.BoundSources() {
		x := boundSource{Source: s.Source, Namespaces: s.Namespaces, Has: []boundHas{}, Asks: []boundAsk{}, binding: s.Binding}
		for _, h := range s.Has {
			x.Has = append(x.Has, boundHas{string(h.Name), h.For, h.By})
		}
		for _, a := range s.Asks {
			x.Asks = append(x.Asks, askOf(s.Binding, a))
		}
		x.Asks = append(x.Asks, faults[s.Binding]...)
		r.Sources = append(r.Sources, x)
	}
	if owners != nil {
		r.Upgrade = t.upgradeReport(in, with, owners, r.Sources)
	}
	return r
}

// faultAsks are what objects that are kept out ask for, by source: sizes, and what the hosts have for themselves.
func (t *tree) faultAsks() map[*mesh.Binding][]boundAsk {
	at := map[string]*mesh.Binding{}
	for _, x := range t.texts {
		if x.binding != nil {
			at[x.path] = x.binding
		}
	}
	out := map[*mesh.Binding][]boundAsk{}
	faults := slices.Clone(t.Faults)
	for _, o := range t.objects() {
		faults = append(faults, o.NotInForce...)
	}
	for _, f := range faults {
		b := at[f.Origin.Path]
		if b == nil {
			continue
		}
		a := boundAsk{
			Name: f.Field, Kind: string(f.Key.Kind), Namespace: f.Key.Namespace, Object: f.Key.Name, File: f.Origin.Path, Line: f.Origin.Line, Column: f.Origin.Column,
			Advice: f.Message, source: b,
		}
		switch {
		case f.Code == lastgood.CodeExcess:
			a.For, a.Flag = forSize, fmt.Sprintf("--max-expansion %d", t.needed)
		case isLimit(f):
			a.For = forSize
			a.Advice += "; no flag allows more"
		case f.Code == manifest.CodeNotInForce:
			for _, flag := range (&hostPathFlags{}).paths() {
				if strings.Contains(f.Message, "--"+flag.name) {
					a.For, a.Flag = forPath, "--"+flag.name+" "+mesh.QuoteWord(b.Source)
				}
			}
		}
		if a.For != "" && !slices.Contains(out[b], a) {
			out[b] = append(out[b], a)
		}
	}
	return out
}

// refused reports whether something of an object is not in force anywhere.
func (a *boundAsk) refused() bool {
	return slices.Contains([]string{forSize, forPath, mesh.ForTables, mesh.ForThird}, a.For)
}

// hasErrors reports whether something is refused, or would be lost.
func (r *boundReport) hasErrors() bool {
	return r.Errors > 0 || r.Upgrade != nil && len(r.Upgrade.Lost) > 0 || slices.ContainsFunc(r.Sources, func(s boundSource) bool {
		return slices.ContainsFunc(s.Asks, func(a boundAsk) bool { return a.By == "" && a.refused() })
	})
}

// listedHas bounds the names that a source may route for others' sake: a catalog has many. JSON has all.
const listedHas = 50

func (r *boundReport) write(w io.Writer, output string) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	p := &printer{w: w}
	for i, s := range r.Sources {
		if i > 0 {
			p.line("")
		}
		p.source(s)
	}
	if r.Errors > 0 {
		p.line("")
		p.line("%s in manifests: `fairlead analyze` without --bound lists them", plural(r.Errors, "error"))
	}
	if r.Upgrade != nil {
		p.upgrade(r.Upgrade)
	}
	return p.err
}

// printer writes until there is an error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	for i, a := range args {
		if s, is := a.(string); is {
			args[i] = safetext.Sanitize(s, 4096)
		}
	}
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) table(head string, rows [][]string) {
	if p.err != nil || len(rows) == 0 {
		return
	}
	p.line("")
	p.err = table(p.w, head, func(w io.Writer) {
		for _, row := range rows {
			for i := range row {
				row[i] = safetext.Sanitize(row[i], 256)
			}
			_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
		}
	})
}

func (p *printer) source(s boundSource) {
	p.line("%s is bound to %s", s.Source, strings.Join(s.Namespaces, ", "))
	var has, asks [][]string
	more := 0
	for _, h := range s.Has {
		if h.For == mesh.ForRoutes && len(has) >= listedHas {
			more++
			continue
		}
		has = append(has, []string{h.Name, h.For, h.By})
	}
	p.table("HAS\tFOR\tBY", has)
	if more > 0 {
		p.line("and %d more that it may route; -o json lists all", more)
	}
	missing := 0
	for _, a := range s.Asks {
		by := a.By
		if by == "" {
			by, missing = "-", missing+1
		}
		asks = append(asks, []string{a.Name, a.For, a.Kind + " " + a.Namespace + "/" + a.Object, by})
	}
	p.table("ASKS FOR\tFOR\tOBJECT\tGIVEN BY", asks)
	if missing == 0 {
		return
	}
	p.line("")
	p.line("NOT GIVEN")
	for _, a := range s.Asks {
		if a.By == "" {
			p.ask(a)
		}
	}
}

// ask is a thing that is not given, and below it the flag that gives it, ready to copy.
func (p *printer) ask(a boundAsk) {
	owner := ""
	if a.Owner != "" {
		owner = ", which belongs to " + a.Owner
	}
	if a.File == "" {
		p.line("namespace %s: %q", a.Namespace, a.Name)
	} else {
		p.line("%s:%d:%d: %s %s/%s: %s %q%s", a.File, a.Line, a.Column, a.Kind, a.Namespace, a.Object, a.For, a.Name, owner)
	}
	if a.Flag != "" {
		p.line("    %s", a.Flag)
	} else if a.Advice != "" {
		p.line("    %s", a.Advice)
	}
}
