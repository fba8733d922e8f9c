package stream

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
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
	target *Generation  // or nil: nothing is known yet, and nothing is sent
	looked *Generation  // the target as of the last look at all tracks
	order  []*typeState // in the order in which they are served
	nonce  uint64
	names  int // subscribed, in all types
	// versions is how many the peer listed, in all types.
	versions int
	events   []Event
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
	return &Server{cfg: cfg}
}

// Target is the generation set last, or nil.
func (s *Server) Target() *Generation { return s.target }

// SetGeneration says what the peer shall have from now on. What was not sent of
// the generation before never will be. It costs nothing: what differs is found
// when the peer can be sent something, or is asked about.
func (s *Server) SetGeneration(g *Generation) { s.target = g }

// typeState is what is known of one type on one stream.
type typeState struct {
	track // of all types but virtual hosts

	url TypeURL
	// groups are the virtual hosts by route configuration.
	groups map[string]*track
	// listed are the versions that the peer listed, until they are compared with
	// something.
	listed []Version

	// unfollowed are responses of which it is not known yet what follows from them.
	unfollowed []*response

	opened      bool // a request has come
	adopted     bool // what the peer listed of virtual hosts has been looked at
	reconnected bool // the peer listed versions
	answered    bool // it has accepted or refused something on this stream

	status marks
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

// typeOf gives the state of a type, or nil.
func (s *Server) typeOf(url TypeURL) *typeState {
	for _, t := range s.order {
		if t.url == url {
			return t
		}
	}
	return nil
}

func (s *Server) addType(url TypeURL) (*typeState, error) {
	if len(s.order) >= s.cfg.MaxTypes {
		return nil, fmt.Errorf("subscribing to %q: more than %d types: %w", url, s.cfg.MaxTypes, ErrLimit)
	}
	t := &typeState{url: url}
	t.typ = t
	s.order = append(s.order, t)
	slices.SortStableFunc(s.order, func(a, b *typeState) int { return cmp.Compare(typeOrder(a.url), typeOrder(b.url)) })
	s.looked = nil
	return t, nil
}

// tracks yields the tracks of a type; those of virtual hosts in any order.
func (t *typeState) tracks() iter.Seq[*track] {
	return func(yield func(*track) bool) {
		if t.url != VirtualHostType {
			yield(&t.track)
			return
		}
		for _, g := range t.groups {
			if !yield(g) {
				return
			}
		}
	}
}

// calm reports whether nothing of the type is left to send or to wait for.
func (t *typeState) calm() bool {
	for k := range t.tracks() {
		if !k.quiet() {
			return false
		}
	}
	return true
}

// Next gives the next response to send, or nil if there is none now.
func (s *Server) Next(now time.Time) *Response {
	if s.target == nil {
		return nil
	}
	s.lookAll()
	for _, t := range s.order {
		if t.url == VirtualHostType {
			if r := s.nextHosts(now, t); r != nil {
				return r
			}
			continue
		}
		if r := s.nextAdd(now, &t.track); r != nil {
			return r
		}
	}
	for _, url := range removalOrder {
		if t := s.typeOf(url); t != nil {
			if r := s.nextRemove(now, &t.track); r != nil {
				return r
			}
		}
	}
	for _, t := range s.order {
		if typeOrder(t.url) == 2 {
			if r := s.nextRemove(now, &t.track); r != nil {
				return r
			}
		}
	}
	return nil
}

func (s *Server) event(e Event) { s.events = append(s.events, e) }
