package stream

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// maxReason bounds, in bytes, what is kept of a peer's words.
const maxReason = 4096

// nack takes the refusal of a response.
func (s *Server) nack(now time.Time, t *typeState, r *response, st *rpcstatus.Status) {
	message := clip(st.GetMessage())
	t.status.NackedGeneration = r.generation
	t.status.NackedAt = now
	t.status.LastError = message
	s.event(Event{
		Kind: EventNacked, Type: t.url, Generation: r.generation, Names: len(r.sent),
		Removal: r.removal, Reason: message, Took: now.Sub(r.at),
	})
	if r.removal {
		// Envoy removes before it refuses; there is nothing else it could mean.
		s.accept(t, r, sortedKeys(r.sent))
		return
	}
	names := s.current(t, r)
	if exact := detailsOf(t.url, st, r); exact != nil {
		s.refusedExactly(t, r, exact)
		return
	}
	if len(names) == 0 {
		return
	}
	for _, name := range names {
		t.at(name).unknown = true
	}
	culprits, certain := culpritsIn(message, names)
	switch {
	case len(names) == 1:
		s.refuse(t, r, names[0], message)
	case certain:
		for _, name := range culprits {
			s.refuse(t, r, name, message)
		}
	case len(culprits) > 0 && len(culprits) < len(names):
		// Named, but perhaps only in passing: the others first, then these alone.
		s.isolate(t, without(names, culprits), culprits)
	default:
		half := len(names) / 2
		s.isolate(t, names[:half], names[half:])
	}
	for _, name := range names {
		s.evaluate(t, name)
	}
}

// current gives the names of a response that no later response has, and that the
// peer still asks for; sorted.
func (*Server) current(t *typeState, r *response) []string {
	var names []string
	for _, name := range sortedKeys(r.sent) {
		e := t.diff[name]
		if e == nil || e.last != r || !t.sub.has(name) {
			continue
		}
		e.last, e.suspect = nil, false
		names = append(names, name)
	}
	return names
}

// detailsOf reads what a relay's refusal lists: exactly the names that were
// finally refused, with the reason of each. Nil if it lists none of the response.
func detailsOf(url TypeURL, st *rpcstatus.Status, r *response) map[string]string {
	var out map[string]string
	for i, d := range st.GetDetails() {
		if i >= len(r.sent) {
			break
		}
		var info errdetails.ResourceInfo
		if d.UnmarshalTo(&info) != nil || info.GetResourceType() != string(url) {
			continue
		}
		if _, ok := r.sent[info.GetResourceName()]; !ok {
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
func (s *Server) refusedExactly(t *typeState, r *response, exact map[string]string) {
	var accepted []string
	for _, name := range sortedKeys(r.sent) {
		reason, refused := exact[name]
		if !refused {
			accepted = append(accepted, name)
			continue
		}
		e := t.diff[name]
		if e == nil {
			continue
		}
		e.last, e.unknown, e.forced, e.suspect = nil, false, false, false
		s.noteRefusal(t, r, name, reason)
		e.minded = true
		s.evaluate(t, name)
	}
	for _, name := range accepted {
		if e := t.diff[name]; e != nil && e.last == nil {
			e.last = r // current has taken it off
		}
	}
	s.accept(t, r, accepted)
}

// refuse notes that a name alone is why a response was refused.
func (s *Server) refuse(t *typeState, r *response, name, reason string) {
	e := t.at(name)
	if e.acked.version() == r.sent[name].version() {
		// Not even what it once took: there is nothing to go back to.
		e.acked, e.listed = &Resource{Name: name, Version: e.acked.version()}, true
	}
	s.noteRefusal(t, r, name, reason)
}

func (s *Server) noteRefusal(t *typeState, r *response, name, reason string) {
	e := t.at(name)
	e.refused, e.reason = r.sent[name].version(), reason
	s.event(Event{
		Kind: EventRejected, Type: t.url, Generation: r.generation, Names: 1,
		Name: name, Version: e.refused, Reason: reason,
	})
}

// isolate has groups of names tried one after the other, each in a response of
// its own, before anything else of the type is sent.
func (*Server) isolate(t *typeState, groups ...[]string) {
	for _, g := range groups {
		for _, name := range g {
			e := t.at(name)
			e.suspect = true
			delete(t.adds, name)
		}
	}
	t.suspects = append(groups, t.suspects...)
}

// nextSuspects sends the next group of suspects, once the one before is answered.
func (s *Server) nextSuspects(now time.Time, t *typeState) *Response {
	if len(t.inflight) > 0 && s.held(now, t, &t.addWait) {
		return nil
	}
	t.addWait.clear()
	for len(t.suspects) > 0 {
		group := t.suspects[0]
		t.suspects = slices.Delete(t.suspects, 0, 1)
		r := &response{sent: map[string]*Resource{}, retry: true}
		for _, name := range group {
			e := t.diff[name]
			if e == nil || !e.suspect {
				continue // no longer asked for
			}
			e.suspect = false
			if want, do := s.desired(t, name, e); do == opAdd {
				r.sent[name] = want
			} else {
				s.evaluate(t, name)
			}
		}
		if len(r.sent) > 0 {
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
	var out []string
	for _, n := range all {
		if !slices.Contains(some, n) {
			out = append(out, n)
		}
	}
	return out
}

func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	return strings.ToValidUTF8(s[:maxReason], "") + fmt.Sprintf("… (%d bytes more)", len(s)-maxReason)
}
