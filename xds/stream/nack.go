package stream

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/fairlead/fairlead/internal/safetext"
)

// maxReason bounds, in bytes, what is kept of an error message.
const maxReason = 4096

// handleNack handles the NACK of a response.
func (s *Server) handleNack(now time.Time, t *subscriptionState, r *sentResponse, st *rpcstatus.Status) {
	raw := st.GetMessage() // with line breaks: names are searched in it
	message := sanitize(raw)
	progress := &t.typ.status
	progress.nacked, progress.nackedAt, progress.lastError = r.generation, now.UnixNano(), message
	s.addEvent(Event{
		Kind: EventNacked, Type: t.typ.url, Generation: r.generation, Names: r.len(),
		Removal: len(r.removed) > 0, Reason: message, Took: now.Sub(r.at),
	})
	if len(r.resources) == 0 {
		// Envoy applies removals before it rejects; a NACK can mean nothing else.
		s.accept(t, r, nil)
		return
	}
	if exact := nackDetails(t.typ.url, st, r); exact != nil {
		s.handleDetailedNack(now, t, r, exact)
		return
	}
	names := t.currentNames(r)
	t.pending.removeSent(r)
	t.pending.recount = true // netAdded of later ones assumed that this one is accepted
	if t.typ.url == ClusterType && len(t.pending.nackedClusters) < maxWithoutDependents {
		t.pending.nackedClusters = append(t.pending.nackedClusters, r)
	}
	if len(names) == 0 {
		return
	}
	for _, name := range names {
		e := t.ensureState(name)
		e.lastSent, e.candidate, e.unknown = nil, false, true
	}
	// Cloned once: the rest of the request must not be kept.
	s.bisect(now, t, r, names, nackMessage{strings.Clone(raw[:min(len(raw), maxReason)]), strings.Clone(message)})
	for _, name := range names {
		s.evaluate(t, name, t.ensureState(name))
	}
	if t.suspended {
		s.reconciled = nil // no retries while suspended
	}
}

// nackMessage is an error message, as received and sanitized.
type nackMessage struct{ raw, sanitized string }

// about is the message about one of the resources that it lists, which are at most some hundred: the
// message is bounded.
func (m nackMessage) about(name string, listed []string) string {
	_, own, found := strings.Cut(m.raw, name+": ")
	if !found || len(listed) == 1 {
		return m.sanitized
	}
	own, _, _ = strings.Cut(own, "\n")
	for _, other := range listed {
		for _, before := range []string{", ", " "} { // Envoy's form, and that of a relay
			own, _, _ = strings.Cut(own, before+other+": ")
		}
	}
	return sanitize(name + ": " + own)
}

// bisect finds which names of a NACKed response are rejected, or schedules retries in
// smaller groups.
func (s *Server) bisect(now time.Time, t *subscriptionState, r *sentResponse, names []string, message nackMessage) {
	mentioned, certain := rejectedIn(message.raw, names)
	switch {
	case len(names) == 1 && t.routeConfig != "" && len(t.pending.retries) > 0 && !t.ensureState(names[0]).secondTry:
		// Its domain may be in another virtual host until that one is changed too.
		t.ensureState(names[0]).secondTry = true
		t.pending.retrySeparately(t, len(t.pending.retries), names)
	case r.len() == 1:
		s.reject(now, t, r, names[0], message.sanitized)
	case certain:
		for _, name := range mentioned {
			s.reject(now, t, r, name, message.about(name, mentioned))
		}
	case len(names) == 1:
		// A resource that was replaced since may be at fault: this one is retried alone.
		t.pending.retrySeparately(t, 0, names)
	case len(r.removed) > 0 && len(without(names, r.removed)) < len(names):
		// A virtual host that is removed may conflict with one that is added.
		s.bisectAfterRemovals(t, without(names, without(names, r.removed)), without(names, r.removed), mentioned)
	case len(mentioned) > 0 && len(mentioned) < len(names):
		// Mentioned, but perhaps not as the reason: the others are retried first, then
		// these alone.
		t.pending.retrySeparately(t, 0, without(names, mentioned), mentioned)
	default:
		half := len(names) / 2
		t.pending.retrySeparately(t, 0, names[:half], names[half:])
	}
}

func (*Server) bisectAfterRemovals(t *subscriptionState, gone, names, mentioned []string) {
	mentioned = without(mentioned, gone)
	switch {
	case len(names) == 1:
		t.pending.retrySeparately(t, 0, gone, names)
	case len(mentioned) > 0 && len(mentioned) < len(names):
		t.pending.retrySeparately(t, 0, gone, without(names, mentioned), mentioned)
	default:
		half := len(names) / 2
		t.pending.retrySeparately(t, 0, gone, names[:half], names[half:])
	}
}

// currentNames are the names of a response that are still subscribed and in no later
// response; sorted.
func (t *subscriptionState) currentNames(r *sentResponse) []string {
	var names []string
	for _, name := range r.names() {
		if t.sub.has(name) && t.peekState(name).lastSent == r {
			names = append(names, name)
		}
	}
	return names
}

// nackDetails reads the error details of a relay's NACK: exactly the names that were
// finally rejected, with the reason of each. Nil if it lists none of the response.
func nackDetails(url TypeURL, st *rpcstatus.Status, r *sentResponse) map[string]string {
	var out map[string]string
	for i, d := range st.GetDetails() {
		if i >= len(r.resources) {
			break
		}
		var info errdetails.ResourceInfo
		if d.UnmarshalTo(&info) != nil || info.GetResourceType() != string(url) {
			continue
		}
		if _, ok := find(r.resources, info.GetResourceName()); !ok {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[info.GetResourceName()] = sanitize(info.GetDescription())
	}
	return out
}

// handleDetailedNack handles a NACK that lists what was rejected: all else in the response
// was accepted, and the rejected resources are unchanged.
func (s *Server) handleDetailedNack(now time.Time, t *subscriptionState, r *sentResponse, exact map[string]string) {
	for _, name := range sortedKeys(exact) {
		e := t.ensureState(name)
		if e.lastSent == r {
			e.lastSent, e.unknown, e.forced, e.candidate = nil, false, false, false
		}
		s.recordRejection(now, t, r, name, exact[name])
		e.relayRejected = true
		s.evaluate(t, name, e)
	}
	s.accept(t, r, exact)
}

// reject records that one name is why a response was NACKed.
func (s *Server) reject(now time.Time, t *subscriptionState, r *sentResponse, name, reason string) {
	e := t.ensureState(name)
	if res, _ := r.find(name); e.acked != nil && e.acked.Version == res.version() {
		// The version that it had accepted is rejected now: there is nothing to revert to.
		e.acked, e.everHad = &Resource{Name: name, Version: e.acked.Version}, true
	}
	s.recordRejection(now, t, r, name, reason)
}

func (s *Server) recordRejection(now time.Time, t *subscriptionState, r *sentResponse, name, reason string) {
	e := t.ensureState(name)
	res, _ := r.find(name)
	e.rejectedVersion, e.rejectedReason = res.version(), reason
	s.scheduleRetry(now, t, e)
	if t.typ.url == RouteType {
		s.reconciled = nil // its virtual hosts may have to be sent
	}
	s.addEvent(Event{
		Kind: EventRejected, Type: t.typ.url, Generation: r.generation, Names: 1,
		Name: name, Version: e.rejectedVersion, Reason: reason,
	})
}

// retrySeparately schedules groups of names for a retry, each in a response of its own,
// before anything else of the subscription is sent.
func (p *pending) retrySeparately(t *subscriptionState, at int, groups ...[]string) {
	for _, g := range groups {
		for _, name := range g {
			t.ensureState(name).candidate = true
		}
	}
	p.retries = slices.Insert(p.retries, at, groups...)
}

// nextRetry sends the next group of retries, once the one before is answered.
func (s *Server) nextRetry(now time.Time, t *subscriptionState) *Response {
	p := t.pending
	if p.waiting() && s.gateClosed(now, t, &p.addWait) {
		return nil
	}
	p.addWait.clear()
	for len(p.retries) > 0 {
		group := p.retries[0]
		p.retries = slices.Delete(p.retries, 0, 1)
		r := &sentResponse{retry: true}
		for _, name := range group {
			e := p.states[name]
			if e == nil || !e.candidate {
				continue // no longer subscribed
			}
			e.candidate = false
			want, do := s.desired(t, name, e)
			switch {
			case do == opAdd:
				r.resources = append(r.resources, want)
			case do == opRemove && t.routeConfig != "":
				r.removed = append(r.removed, name)
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

// rejectedIn finds the names that an error message is about. They are certain if they
// stand where Envoy lists rejected resources ("Error adding/updating cluster(s) NAME:
// reason, NAME: reason"); otherwise they are only mentioned.
func rejectedIn(message string, names []string) (rejected []string, certain bool) {
	var listed, mentioned []string
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
			listed = append(listed, name)
		} else if occursIn(message, name) {
			mentioned = append(mentioned, name)
		}
	}
	if len(listed) > 0 {
		return listed, true
	}
	return mentioned, false
}

// occursIn reports whether a name is in the text as a whole word.
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

// endsSentence reports whether a text starts with a full stop that is not part of a name.
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

// sanitize bounds a peer's text and makes it safe to show.
func sanitize(s string) string { return safetext.Sanitize(s, maxReason) }
