package consul

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
)

const (
	// denialLogEvery is the least time between two log lines about missing ACL rules, and
	// denialLogMax how many rules a line names.
	denialLogEvery = 10 * time.Second
	denialLogMax   = 5
)

// denialLog is the latest log line about missing ACL rules.
type denialLog struct {
	loggedRules uint64 // a hash of the rules, or 0
	loggedAt    time.Time
}

// firstServices are the first services by name. The loop makes the status, so it does
// not sort all of them.
type firstServices struct {
	list  []*service // in order
	count int
	sum   uint64 // a hash of all
}

func (f *firstServices) add(svc *service) {
	f.count++
	if len(f.list) == listMax && svc.name > f.list[listMax-1].name {
		return
	}
	i, _ := slices.BinarySearchFunc(f.list, svc.name, func(x *service, name string) int { return strings.Compare(x.name, name) })
	f.list = slices.Insert(f.list, i, svc)
	f.list = f.list[:min(len(f.list), listMax)]
}

// digest is a hash, to be added to those of others in any order.
func digest(kind, name string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, kind+"\x00"+name) // never fails
	return h.Sum64()
}

// texts are the services as text.
func (f *firstServices) texts(say func(*service) string) []string {
	out := make([]string, len(f.list))
	for i, svc := range f.list {
		out[i] = say(svc)
	}
	return out
}

// describeServices fills in what the status says of services.
func (l *loop) describeServices(st *Status) {
	var noted, denied, filtered, unreadable firstServices
	notes := 0
	for _, svc := range l.services {
		if svc.raw != nil {
			st.Services++
		}
		if len(svc.notes) > 0 {
			notes += len(svc.notes)
			noted.add(svc)
		}
		switch {
		case svc.denied:
			denied.add(svc)
			denied.sum += digest("denied", svc.name)
		case svc.filtered && (l.s.cfg.Client.TokenFile != "" || len(svc.held) > 0):
			filtered.add(svc)
			filtered.sum += digest("filtered", svc.name)
		}
		if svc.fault != "" {
			unreadable.add(svc)
		}
	}
	st.NoteCount, st.Notes = notes, noted.notes()
	st.UnreadableCount = unreadable.count
	st.Unreadable = unreadable.texts(func(svc *service) string { return fmt.Sprintf("%q: %s", svc.name, svc.fault) })

	rules := map[string]bool{}
	sum := denied.sum + filtered.sum
	for name, err := range l.faults {
		if _, ok := errors.AsType[client.Unusable](err); ok {
			st.UnreadableCount++
			st.Unreadable = append(st.Unreadable, name+": "+err.Error())
		}
		if d, ok := errors.AsType[*client.Denied](err); ok {
			rules[cmp.Or(d.Rule, d.Reason)] = true
		}
	}
	if l.hidden {
		rules[deniedList] = true
	}
	slices.Sort(st.Unreadable)
	st.Unreadable = slices.Clip(st.Unreadable[:min(len(st.Unreadable), listMax)])
	for rule := range rules {
		sum += digest("rule", rule)
	}
	st.DeniedCount = len(rules) + denied.count + filtered.count
	st.Denied = slices.Concat(slices.Collect(maps.Keys(rules)),
		denied.texts(func(svc *service) string {
			return fmt.Sprintf("service:read on %q, or node:read on its nodes", svc.name)
		}),
		filtered.texts(func(svc *service) string { return fmt.Sprintf("node:read on some nodes of service %q", svc.name) }))
	slices.Sort(st.Denied)
	st.Denied = slices.Clip(st.Denied[:min(len(st.Denied), listMax)])
	l.logDenied(st, sum)
}

// logDenied logs the missing ACL rules if they changed.
func (l *loop) logDenied(st *Status, sum uint64) {
	now := l.statusAt
	if sum == l.loggedRules || !l.live && l.faults[queryNamesPath] == nil || now.Sub(l.loggedAt) < denialLogEvery {
		return
	}
	l.loggedRules, l.loggedAt = sum, now
	if st.DeniedCount == 0 {
		l.log.Info("Consul ACL permissions restored")
		return
	}
	l.log.Warn("Consul token lacks ACL rules: services seen before keep their last state, others are not in the mesh",
		"rules", st.DeniedCount, "first", strings.Join(st.Denied[:min(len(st.Denied), denialLogMax)], "; "))
}

// notes are the first notes of the services.
func (f *firstServices) notes() []mapping.Note {
	var out []mapping.Note
	for _, svc := range f.list {
		if len(out) >= listMax {
			break
		}
		began := len(out)
		out = append(out, svc.notes...)
		slices.SortFunc(out[began:], func(a, b mapping.Note) int {
			return cmp.Or(strings.Compare(a.Instance, b.Instance), strings.Compare(string(a.Code), string(b.Code)), strings.Compare(a.Message, b.Message))
		})
	}
	return slices.Clip(out[:min(len(out), listMax)])
}
