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
	// tellEvery is the least time between two lines of the log on what the token
	// lacks, and toldMost how many rules such a line names.
	tellEvery = 10 * time.Second
	toldMost  = 5
)

// teller is what the log was told of what the token lacks.
type teller struct {
	toldDenied uint64 // a hash of the rules, or 0
	toldAt     time.Time
}

// firsts are the first services by name of any number. The loop makes the status,
// so it may not sort all there are.
type firsts struct {
	list  []*service // in order
	count int
	sum   uint64 // a hash of all
}

func (f *firsts) add(svc *service) {
	f.count++
	if len(f.list) == listedMost && svc.name > f.list[listedMost-1].name {
		return
	}
	i, _ := slices.BinarySearchFunc(f.list, svc.name, func(x *service, name string) int { return strings.Compare(x.name, name) })
	f.list = slices.Insert(f.list, i, svc)
	f.list = f.list[:min(len(f.list), listedMost)]
}

// digest is for sums that do not depend on an order.
func digest(kind, name string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, kind+"\x00"+name) // never fails
	return h.Sum64()
}

// texts are what there is to say of the services.
func (f *firsts) texts(say func(*service) string) []string {
	out := make([]string, len(f.list))
	for i, svc := range f.list {
		out[i] = say(svc)
	}
	return out
}

// survey collects what there is to tell of the services.
func (l *loop) survey(st *Status) {
	var noted, denied, filtered, unreadable firsts
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
	st.Unreadable = slices.Clip(st.Unreadable[:min(len(st.Unreadable), listedMost)])
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
	st.Denied = slices.Clip(st.Denied[:min(len(st.Denied), listedMost)])
	l.tellDenied(st, sum)
}

// tellDenied logs what the token lacks when that is something else than before.
func (l *loop) tellDenied(st *Status, sum uint64) {
	now := l.stamped
	if sum == l.toldDenied || !l.live && l.faults[questionNames] == nil || now.Sub(l.toldAt) < tellEvery {
		return
	}
	l.toldDenied, l.toldAt = sum, now
	if st.DeniedCount == 0 {
		l.log.Info("Consul ACL permissions restored")
		return
	}
	l.log.Warn("Consul token lacks ACL rules: services seen before keep their last state, others are not in the mesh",
		"rules", st.DeniedCount, "first", strings.Join(st.Denied[:min(len(st.Denied), toldMost)], "; "))
}

// notes are the first notes of services that have some.
func (f *firsts) notes() []mapping.Note {
	var out []mapping.Note
	for _, svc := range f.list {
		if len(out) >= listedMost {
			break
		}
		began := len(out)
		out = append(out, svc.notes...)
		slices.SortFunc(out[began:], func(a, b mapping.Note) int {
			return cmp.Or(strings.Compare(a.Instance, b.Instance), strings.Compare(string(a.Code), string(b.Code)), strings.Compare(a.Message, b.Message))
		})
	}
	return slices.Clip(out[:min(len(out), listedMost)])
}
