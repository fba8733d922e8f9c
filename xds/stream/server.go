package stream

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"
)

// Defaults of ServerConfig.
const (
	DefaultGateTimeout  = 20 * time.Second
	DefaultMaxNames     = 200_000
	DefaultMaxNameBytes = 4096
	DefaultMaxTypes     = 32
	DefaultMaxResponse  = 3 << 20
)

// maxInflight bounds the unanswered responses of one type.
const maxInflight = 8

// ErrLimit is wrapped by the error for a request that exceeds a limit.
var ErrLimit = errors.New("limit exceeded")

// ServerConfig is what a Server needs; the zero value works.
type ServerConfig struct {
	// Interner shares sets of names between servers; nil means none are shared.
	Interner *Interner
	// GateTimeout is how long a type waits at most for the answer to an earlier one; 0
	// means DefaultGateTimeout.
	GateTimeout time.Duration
	// MaxNames bounds the names to which a peer subscribes, or that it lists, over all
	// types; 0 means DefaultMaxNames.
	MaxNames int
	// MaxNameBytes bounds one name; 0 means DefaultMaxNameBytes.
	MaxNameBytes int
	// MaxTypes bounds the types to which a peer subscribes; 0 means DefaultMaxTypes.
	MaxTypes int
	// MaxResponse is the sum of bodies, in bytes, above which a response is split; 0 means
	// DefaultMaxResponse.
	MaxResponse int
	// Unacknowledged are the names whose initial_resource_versions may be wrong: what
	// [Server.UnacknowledgedNames] returned for the peer's last stream. May be nil.
	Unacknowledged map[TypeURL][]string
	// Retry says when rejected listeners and clusters are sent again; the zero value means
	// DefaultRetry.
	Retry Retry
}

// Server is the server half of one stream. Not safe for concurrent use.
type Server struct {
	cfg        ServerConfig
	target     *Generation            // nil before the first SetGeneration: nothing is sent
	own        map[TypeURL]*mergedSet // set by SetOwn, or nil
	reconciled *Generation            // the target of the last reconcileAll
	order      []*typeState           // in the order in which they are served
	nonce      uint64
	names      int // subscribed, over all types
	// versions is how many the peer listed, over all types.
	versions int
	events   []Event
	// retryAt is the first time of a retry, or earlier; zero if there is none.
	retryAt time.Time
}

// NewServer makes the server half of a new stream.
func NewServer(cfg ServerConfig) *Server {
	cfg.GateTimeout = cmp.Or(cfg.GateTimeout, DefaultGateTimeout)
	cfg.MaxNames = cmp.Or(cfg.MaxNames, DefaultMaxNames)
	cfg.MaxNameBytes = cmp.Or(cfg.MaxNameBytes, DefaultMaxNameBytes)
	cfg.MaxTypes = cmp.Or(cfg.MaxTypes, DefaultMaxTypes)
	cfg.MaxResponse = cmp.Or(cfg.MaxResponse, DefaultMaxResponse)
	if cfg.Retry == (Retry{}) {
		cfg.Retry = DefaultRetry()
	}
	if cfg.Interner == nil {
		cfg.Interner = new(Interner)
	}
	return &Server{cfg: cfg}
}

// Target is the generation that was set last, or nil.
func (s *Server) Target() *Generation { return s.target }

// SetGeneration sets the target: what the peer is to have from now on. What was not sent
// of the last target is never sent. It costs nothing: differences are computed when the
// peer can be sent something, or when the status is read.
func (s *Server) SetGeneration(g *Generation) { s.target = g }

// SetOwn sets the resources of a type that only this peer is to have from now on. They stand
// beside the generation, which many peers share: its resources of the type do not count. The
// order, NACK and reconnect rules are the same. Nothing is sent before the first
// SetGeneration.
func (s *Server) SetOwn(url TypeURL, set *Set) {
	if s.own == nil {
		s.own = map[TypeURL]*mergedSet{}
	}
	// Private: no other stream has a use for the differences.
	s.own[url] = &mergedSet{sets: []*Set{set}, layers: []string{""}, private: true}
	s.reconciled = nil
}

// wanted are the resources of a type that the peer is to have.
func (s *Server) wanted(url TypeURL) *mergedSet {
	if own, ok := s.own[url]; ok {
		return own
	}
	return s.target.merged(url)
}

// typeState is what is known of one type on one stream.
type typeState struct {
	subscriptionState // of all types except virtual hosts

	url TypeURL
	// hosts are the virtual hosts by route configuration.
	hosts map[string]*subscriptionState
	// initialVersions are the versions that the peer listed, until they are compared with
	// the target.
	initialVersions []Version
	// indexed is the set to which the indexes in initialVersions refer, while there are
	// any.
	indexed *mergedSet

	// withoutDependents are responses whose dependents are not subscribed yet.
	withoutDependents []*sentResponse

	requested   bool // a request was received
	adopted     bool // adoptInitialHosts has finished
	reconnected bool // the peer listed versions
	answered    bool // the peer has sent an ACK or NACK on this stream

	status typeProgress
}

// typeOrder is the order in which types are served. Types that it does not know come
// between endpoints and extensions (otherTypes).
func typeOrder(t TypeURL) int {
	switch t {
	case ClusterType:
		return 0
	case EndpointType:
		return 1
	case ExtensionType:
		return 3
	case ListenerType:
		return 4
	case RouteType:
		return 5
	case VirtualHostType:
		return 6
	default:
		return otherTypes
	}
}

const otherTypes = 2

// typeOf returns the state of a type, or nil.
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
	s.reconciled = nil
	return t, nil
}

// states yields the subscription states of a type; those of virtual hosts in any order.
func (t *typeState) states() iter.Seq[*subscriptionState] {
	return func(yield func(*subscriptionState) bool) {
		if t.url != VirtualHostType {
			yield(&t.subscriptionState)
			return
		}
		for _, g := range t.hosts {
			if !yield(g) {
				return
			}
		}
	}
}

// allIdle reports whether nothing of the type is left to send or to wait for.
func (t *typeState) allIdle() bool {
	for k := range t.states() {
		if !k.idle() {
			return false
		}
	}
	return true
}

// Next returns the next response to send, or nil if there is none now.
func (s *Server) Next(now time.Time) *Response {
	if s.target == nil {
		return nil
	}
	s.reconcileAll()
	s.retryRejected(now)
	for _, t := range s.order {
		if t.url == VirtualHostType {
			if r := s.nextHosts(now, t); r != nil {
				return r
			}
			continue
		}
		if r := s.nextAdd(now, &t.subscriptionState); r != nil {
			return r
		}
	}
	for _, url := range removalOrder {
		if t := s.typeOf(url); t != nil {
			if r := s.nextRemove(now, &t.subscriptionState); r != nil {
				return r
			}
		}
	}
	for _, t := range s.order {
		if typeOrder(t.url) == otherTypes {
			if r := s.nextRemove(now, &t.subscriptionState); r != nil {
				return r
			}
		}
	}
	return nil
}

func (s *Server) addEvent(e Event) { s.events = append(s.events, e) }
