package stream

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/fairlead/fairlead/internal/plain"
)

// maxReason bounds, in bytes, what is kept of a peer's words.
const maxReason = 4096

// nack takes the refusal of a response.
func (s *Server) nack(now time.Time, t *track, r *response, st *rpcstatus.Status) {
	said := st.GetMessage() // with its lines: names are looked for in it
	message := clip(said)
	marks := &t.typ.status
	marks.nacked, marks.nackedAt, marks.lastError = r.generation, now.UnixNano(), message
	s.event(Event{
		Kind: EventNacked, Type: t.typ.url, Generation: r.generation, Names: r.len(),
		Removal: len(r.gone) > 0, Reason: message, Took: now.Sub(r.at),
	})
	if len(r.list) == 0 {
		// Envoy removes before it refuses; there is nothing else it could mean.
		s.accept(t, r, nil)
		return
	}
	if exact := detailsOf(t.typ.url, st, r); exact != nil {
		s.refusedExactly(t, r, exact)
		return
	}
	names := t.current(r)
	t.w.drop(r)
	t.w.recount = true // later ones were counted as if this one had been taken
	if t.typ.url == ClusterType && len(t.w.refused) < maxUnfollowed {
		t.w.refused = append(t.w.refused, r)
	}
	if len(names) == 0 {
		return
	}
	for _, name := range names {
		e := t.at(name)
		e.last, e.suspect, e.unknown = nil, false, true
	}
	// The rest of it is not to be kept, and what is kept of it not once a name.
	s.blame(t, r, names, words{strings.Clone(said[:min(len(said), maxReason)]), strings.Clone(message)})
	for _, name := range names {
		s.evaluate(t, name, t.at(name))
	}
	if t.asleep {
		s.looked = nil // nothing is tried for now
	}
}

// words are a peer's, as it said them, and fit to be shown.
type words struct{ said, plain string }

// blame finds which of the names of a response are at fault, or has them tried
// apart.
func (s *Server) blame(t *track, r *response, names []string, message words) {
	culprits, certain := culpritsIn(message.said, names)
	switch {
	case len(names) == 1 && t.table != "" && len(t.w.suspects) > 0 && !t.at(names[0]).again:
		// Its domain may be that of another one, until that has been changed too.
		t.at(names[0]).again = true
		t.w.isolate(t, len(t.w.suspects), names)
	case r.len() == 1:
		s.refuse(t, r, names[0], message.plain)
	case certain:
		for _, name := range culprits {
			s.refuse(t, r, name, message.plain)
		}
	case len(names) == 1:
		// At fault may be what something newer has replaced: this is tried alone.
		t.w.isolate(t, 0, names)
	case len(r.gone) > 0 && len(without(names, r.gone)) < len(names):
		// What goes may be in the way of what comes.
		s.blameRest(t, without(names, without(names, r.gone)), without(names, r.gone), culprits)
	case len(culprits) > 0 && len(culprits) < len(names):
		// Named, but perhaps only in passing: the others first, then these alone.
		t.w.isolate(t, 0, without(names, culprits), culprits)
	default:
		half := len(names) / 2
		t.w.isolate(t, 0, names[:half], names[half:])
	}
}

func (*Server) blameRest(t *track, gone, names, culprits []string) {
	culprits = without(culprits, gone)
	switch {
	case len(names) == 1:
		t.w.isolate(t, 0, gone, names)
	case len(culprits) > 0 && len(culprits) < len(names):
		t.w.isolate(t, 0, gone, without(names, culprits), culprits)
	default:
		half := len(names) / 2
		t.w.isolate(t, 0, gone, names[:half], names[half:])
	}
}

// current gives the names of a response that no later response has, and that the
// peer still asks for; sorted.
func (t *track) current(r *response) []string {
	var names []string
	for _, name := range r.names() {
		if t.sub.has(name) && t.peek(name).last == r {
			names = append(names, name)
		}
	}
	return names
}

// detailsOf reads what a relay's refusal lists: exactly the names that were
// finally refused, with the reason of each. Nil if it lists none of the response.
func detailsOf(url TypeURL, st *rpcstatus.Status, r *response) map[string]string {
	var out map[string]string
	for i, d := range st.GetDetails() {
		if i >= len(r.list) {
			break
		}
		var info errdetails.ResourceInfo
		if d.UnmarshalTo(&info) != nil || info.GetResourceType() != string(url) {
			continue
		}
		if _, ok := find(r.list, info.GetResourceName()); !ok {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[info.GetResourceName()] = clip(info.GetDescription())
	}
	return out
}

// refusedExactly takes a refusal that says what was refused: all else in the
// response was accepted, and what was refused is as it was before.
func (s *Server) refusedExactly(t *track, r *response, exact map[string]string) {
	for _, name := range sortedKeys(exact) {
		e := t.at(name)
		if e.last == r {
			e.last, e.unknown, e.forced, e.suspect = nil, false, false, false
		}
		s.noteRefusal(t, r, name, exact[name])
		e.minded = true
		s.evaluate(t, name, e)
	}
	s.accept(t, r, exact)
}

// refuse notes that a name alone is why a response was refused.
func (s *Server) refuse(t *track, r *response, name, reason string) {
	e := t.at(name)
	if res, _ := r.find(name); e.acked != nil && e.acked.Version == res.version() {
		// Not even what it once took: there is nothing to go back to.
		e.acked, e.listed = &Resource{Name: name, Version: e.acked.Version}, true
	}
	s.noteRefusal(t, r, name, reason)
}

func (s *Server) noteRefusal(t *track, r *response, name, reason string) {
	e := t.at(name)
	res, _ := r.find(name)
	e.refused, e.reason = res.version(), reason
	if t.typ.url == RouteType {
		s.looked = nil // its virtual hosts may have to be sent after all
	}
	s.event(Event{
		Kind: EventRejected, Type: t.typ.url, Generation: r.generation, Names: 1,
		Name: name, Version: e.refused, Reason: reason,
	})
}

// isolate has groups of names tried one after the other, each in a response of
// its own, before anything else of the track is sent.
func (w *work) isolate(t *track, at int, groups ...[]string) {
	for _, g := range groups {
		for _, name := range g {
			t.at(name).suspect = true
		}
	}
	w.suspects = slices.Insert(w.suspects, at, groups...)
}

// nextSuspects sends the next group of suspects, once the one before is answered.
func (s *Server) nextSuspects(now time.Time, t *track) *Response {
	w := t.w
	if w.waiting() && s.held(now, t, &w.addWait) {
		return nil
	}
	w.addWait.clear()
	for len(w.suspects) > 0 {
		group := w.suspects[0]
		w.suspects = slices.Delete(w.suspects, 0, 1)
		r := &response{retry: true}
		for _, name := range group {
			e := w.diff[name]
			if e == nil || !e.suspect {
				continue // no longer asked for
			}
			e.suspect = false
			want, do := s.desired(t, name, e)
			switch {
			case do == opAdd:
				r.list = append(r.list, want)
			case do == opRemove && t.table != "":
				r.gone = append(r.gone, name)
			default:
				s.evaluate(t, name, e)
			}
		}
		if r.len() > 0 {
			return s.send(now, t, r)
		}
	}
	return nil
}

// culpritsIn finds which of the names a message blames. Certain are those that
// stand where Envoy puts the names of what it refused ("Error adding/updating
// cluster(s) NAME: reason, NAME: reason"); the others merely occur.
func culpritsIn(message string, names []string) (culprits []string, certain bool) {
	var blamed, occurring []string
	list := ""
	if _, rest, ok := strings.Cut(message, "Error adding/updating "); ok {
		if _, after, ok := strings.Cut(rest, "(s) "); ok {
			list = after
		}
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		if strings.HasPrefix(list, name+": ") || strings.Contains(list, ", "+name+": ") || strings.Contains(list, "\n"+name+": ") {
			blamed = append(blamed, name)
		} else if occursIn(message, name) {
			occurring = append(occurring, name)
		}
	}
	if len(blamed) > 0 {
		return blamed, true
	}
	return occurring, false
}

// occursIn reports whether a name stands in the text as a word of its own.
func occursIn(text, name string) bool {
	for at := 0; ; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return false
		}
		i += at
		end := i + len(name)
		if (i == 0 || !partOfName(text[i-1])) && (end == len(text) || !partOfName(text[end]) || endsSentence(text[end:])) {
			return true
		}
		at = i + 1
	}
}

func partOfName(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("_-.|/*", c) >= 0
}

// endsSentence reports whether a text begins with a full stop and not a name's.
func endsSentence(text string) bool {
	return text[0] == '.' && (len(text) == 1 || text[1] == ' ' || text[1] == '\n')
}

func without(all, some []string) []string {
	gone := make(map[string]bool, len(some))
	for _, n := range some {
		gone[n] = true
	}
	var out []string
	for _, n := range all {
		if !gone[n] {
			out = append(out, n)
		}
	}
	return out
}

// clip makes a peer's words fit to be shown, wherever that will be.
func clip(s string) string { return plain.Words(s, maxReason) }
