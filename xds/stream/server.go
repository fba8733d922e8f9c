package stream

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// What a ServerConfig's zero values mean.
const (
	DefaultGateTimeout  = 20 * time.Second
	DefaultMaxNames     = 200_000
	DefaultMaxNameBytes = 4096
	DefaultMaxTypes     = 32
	DefaultMaxResponse  = 3 << 20
)

// maxInflight bounds the unanswered responses of one type.
const maxInflight = 8

// ErrLimit is what every refusal of a request wraps that asks for too much.
var ErrLimit = errors.New("limit exceeded")

// ServerConfig is what a Server needs; the zero value works.
type ServerConfig struct {
	// Interner shares sets of names between servers; nil means none are shared.
	Interner *Interner
	// GateTimeout is how long something waits at most for the answer to something
	// before it; 0 means DefaultGateTimeout.
	GateTimeout time.Duration
	// MaxNames bounds the names that a peer subscribes to, or lists, in all;
	// 0 means DefaultMaxNames.
	MaxNames int
	// MaxNameBytes bounds one name; 0 means DefaultMaxNameBytes.
	MaxNameBytes int
	// MaxTypes bounds the types that a peer asks for; 0 means DefaultMaxTypes.
	MaxTypes int
	// MaxResponse is the sum of bodies, in bytes, from which a response is split;
	// 0 means DefaultMaxResponse.
	MaxResponse int
	// Distrust are names whose versions, as the peer lists them when it
	// reconnects, are not believed: what [Server.Unknown] gave for its stream
	// before. May be nil.
	Distrust map[TypeURL][]string
}

// Server is the server half of one stream. Not safe for concurrent use.
type Server struct {
	cfg    ServerConfig
	target *Generation // or nil: nothing is known yet, and nothing is sent
	types  map[TypeURL]*typeState
	order  []*typeState // in the order in which they are served
	nonce  uint64
	names  int // subscribed, in all types
	events []Event
	// behind are names that the peer needs once more, because of what they hang on
	// was sent: endpoints of clusters, routes of listeners. A name stays here until
	// it has been sent, for its subscription may arrive later; with the bytes of
	// that moment, for the target may have dropped it by then, and the cluster would
	// wait for ever.
	behind map[TypeURL]map[string]*Resource
}

// NewServer makes the server half of a new stream.
func NewServer(cfg ServerConfig) *Server {
	cfg.GateTimeout = cmp.Or(cfg.GateTimeout, DefaultGateTimeout)
	cfg.MaxNames = cmp.Or(cfg.MaxNames, DefaultMaxNames)
	cfg.MaxNameBytes = cmp.Or(cfg.MaxNameBytes, DefaultMaxNameBytes)
	cfg.MaxTypes = cmp.Or(cfg.MaxTypes, DefaultMaxTypes)
	cfg.MaxResponse = cmp.Or(cfg.MaxResponse, DefaultMaxResponse)
	if cfg.Interner == nil {
		cfg.Interner = new(Interner)
	}
	return &Server{
		cfg:    cfg,
		types:  map[TypeURL]*typeState{},
		behind: map[TypeURL]map[string]*Resource{},
	}
}

// Target is the generation set last, or nil.
func (s *Server) Target() *Generation { return s.target }

// SetGeneration says what the peer shall have from now on. What was not sent of
// the generation before never will be.
func (s *Server) SetGeneration(g *Generation) {
	if g == s.target {
		return
	}
	s.target = g
	for _, t := range s.order {
		s.retarget(t)
		s.settle(t)
	}
}

// pruneBehind forgets that a name follows, if it is gone.
func (s *Server) pruneBehind(url TypeURL, name string) {
	if s.target.Get(url, name) == nil {
		delete(s.behind[url], name)
	}
}

// retarget finds what differs between what a peer has of a type and the target.
func (s *Server) retarget(t *typeState) {
	for name := range t.diff {
		s.evaluate(t, name)
	}
	if t.base != nil {
		d := s.target.Diff(t.base)[t.url]
		for _, r := range d.Changed {
			s.evaluate(t, r.Name)
		}
		for _, name := range d.Removed {
			s.evaluate(t, name)
		}
		return
	}
	if t.sub.wildcard {
		for r := range s.target.All(t.url) {
			s.evaluate(t, r.Name)
		}
	}
	for name := range t.sub.all() {
		s.evaluate(t, name)
	}
}

// typeState is what is known of one type on one stream.
type typeState struct {
	url TypeURL
	sub subscription

	// The peer has what base has of what it subscribes to, but for the names in
	// diff; with a nil base it has only what diff says. diff is nil while the
	// peer is in step.
	base *Generation
	diff map[string]*entry

	adds     map[string]struct{} // to be sent
	removes  map[string]struct{} // to be removed
	suspects [][]string          // groups to be tried alone, after a refusal
	inflight []*response         // unanswered, oldest first
	owed     bool                // the peer waits for a first answer, be it empty

	reconnected bool // the peer listed versions
	answered    bool // it has accepted or refused something on this stream

	addWait, removeWait wait

	status TypeStatus // what a person is told; the rest is filled in by Status
}

// response is an unanswered response.
type response struct {
	nonce      string
	generation uint64
	sent       map[string]*Resource // nil for a removal
	removal    bool
	retry      bool // what follows a refusal: nobody waits for it
	at         time.Time
}

// typeOrder is the order in which types are served; others come between
// endpoints and listeners.
func typeOrder(t TypeURL) int {
	switch t {
	case ClusterType:
		return 0
	case EndpointType:
		return 1
	case ListenerType:
		return 3
	case RouteType:
		return 4
	case VirtualHostType:
		return 5
	default:
		return 2
	}
}

func (s *Server) addType(url TypeURL) (*typeState, error) {
	if len(s.types) >= s.cfg.MaxTypes {
		return nil, fmt.Errorf("subscribing to %q: more than %d types: %w", url, s.cfg.MaxTypes, ErrLimit)
	}
	t := &typeState{url: url, diff: map[string]*entry{}}
	t.status.Type = url
	s.types[url] = t
	s.order = append(s.order, t)
	slices.SortStableFunc(s.order, func(a, b *typeState) int { return cmp.Compare(typeOrder(a.url), typeOrder(b.url)) })
	return t, nil
}

// Next gives the next response to send, or nil if there is none now.
func (s *Server) Next(now time.Time) *Response {
	if s.target == nil {
		return nil
	}
	for _, t := range s.order {
		if r := s.nextAdd(now, t); r != nil {
			return r
		}
	}
	for _, url := range removalOrder {
		if t := s.types[url]; t != nil {
			if r := s.nextRemove(now, t); r != nil {
				return r
			}
		}
	}
	for _, t := range s.order {
		if typeOrder(t.url) == 2 {
			if r := s.nextRemove(now, t); r != nil {
				return r
			}
		}
	}
	return nil
}

// send builds a response and notes what is in it.
func (s *Server) send(now time.Time, t *typeState, r *response) *Response {
	s.nonce++
	r.nonce = strconv.FormatUint(s.nonce, 10)
	r.at = now
	r.generation = s.target.Number
	out := &Response{TypeURL: t.url, Nonce: r.nonce, SystemVersion: strconv.FormatUint(r.generation, 10)}
	for _, name := range sortedKeys(r.sent) {
		if r.removal {
			out.Removed = append(out.Removed, name)
			delete(t.removes, name)
		} else {
			out.Resources = append(out.Resources, r.sent[name])
			delete(t.adds, name)
			delete(s.behind[t.url], name)
		}
		e := t.at(name)
		e.last, e.forced, e.minded = r, false, false
	}
	if !r.removal {
		t.owed = false
		s.follow(t, r)
	}
	if len(t.inflight) >= maxInflight {
		s.forget(t, t.inflight[0])
	}
	t.inflight = append(t.inflight, r)
	t.status.SentGeneration = r.generation
	t.status.SentAt = now
	s.event(Event{Kind: EventSent, Type: t.url, Generation: r.generation, Names: len(r.sent), Removal: r.removal})
	return out
}

// follow notes what the peer needs once more because of what is being sent.
func (s *Server) follow(t *typeState, r *response) {
	switch t.url {
	case ClusterType:
		for name := range r.sent {
			s.followName(EndpointType, name)
		}
	case ListenerType:
		// Within a stream Envoy shares its routes between the old and the new
		// listener; after a reconnect it may have neither.
		if !t.reconnected || t.answered {
			return
		}
		for _, res := range r.sent {
			if res.Refs == nil {
				s.followAllRoutes()
				continue
			}
			for _, name := range res.Refs {
				s.followName(RouteType, name)
			}
		}
	default:
	}
}

func (s *Server) followAllRoutes() {
	for r := range s.target.All(RouteType) {
		s.followName(RouteType, r.Name)
	}
}

func (s *Server) followName(url TypeURL, name string) {
	r := s.target.Get(url, name)
	if r == nil {
		return
	}
	if s.behind[url] == nil {
		s.behind[url] = map[string]*Resource{}
	}
	s.behind[url][name] = r
	s.evaluateIn(url, name)
}

// forget gives up waiting for an answer that a peer owes since long.
func (s *Server) forget(t *typeState, r *response) {
	t.inflight = slices.DeleteFunc(t.inflight, func(o *response) bool { return o == r })
	for name := range r.sent {
		if t.url == ClusterType {
			s.pruneBehind(EndpointType, name)
		}
		if e := t.diff[name]; e != nil && e.last == r {
			e.last, e.unknown = nil, true
			s.evaluate(t, name)
		}
	}
}

func (s *Server) event(e Event) { s.events = append(s.events, e) }
