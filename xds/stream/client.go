package stream

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// DefaultMaxHeld is what a zero MaxHeld means.
const DefaultMaxHeld = 256

// Want is what a client asks for of one type.
type Want struct {
	All   bool
	Names []string // sorted
}

// ClientConfig is what a Client needs; the zero value works.
type ClientConfig struct {
	// Wants is asked for from the first stream on; may be nil.
	Wants map[TypeURL]Want
	// Accepted is what the client has, by type and name: the versions that it tells
	// the server. May be nil.
	Accepted map[TypeURL]map[string]string
	// MaxHeld bounds the updates that are not Done, in all; 0 means
	// DefaultMaxHeld.
	MaxHeld int
}

// Client is the client half: what is wanted and what has been accepted, across
// any number of streams. Not safe for concurrent use.
type Client struct {
	cfg   ClientConfig
	types map[TypeURL]*clientType
	order []*clientType
	// stream counts the streams: an update of an earlier one is not answered.
	stream uint64
	held   int
	// answers are ACKs and NACKs to be sent, oldest first.
	answers []*discovery.DeltaDiscoveryRequest
}

type clientType struct {
	url      TypeURL
	all      bool
	names    map[string]struct{}
	accepted map[string]string
	// add and drop are changes of names, and allChanged of all, that the server
	// does not know of yet.
	add, drop  map[string]struct{}
	allChanged bool
	opened     bool // the first request of this stream has been given
	updates    []*Update
}

// Update is one response. It counts as accepted, or refused, when Done is
// called, and until then the server waits.
type Update struct {
	Type    TypeURL
	Changed []*Resource
	Removed []string
	// Label is the server's own name for the state it sent, for people.
	Label string

	client     *Client
	stream     uint64
	nonce      string
	done       bool
	superseded map[string]struct{} // names that a later update has settled; or nil
}

// Refusal is one resource that was refused, and why.
type Refusal struct{ Name, Reason string }

// RejectError says exactly which resources of an update were refused: all else
// in it was accepted.
type RejectError struct{ Refused []Refusal }

// Error joins the reasons.
func (e *RejectError) Error() string {
	var b strings.Builder
	for i, r := range e.Refused {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(r.Name + ": " + r.Reason)
		if b.Len() > maxReason {
			break
		}
	}
	return clip(b.String())
}

// NewClient makes a client that has no stream yet; see [Client.Open].
func NewClient(cfg ClientConfig) *Client {
	cfg.MaxHeld = cmp.Or(cfg.MaxHeld, DefaultMaxHeld)
	c := &Client{cfg: cfg, types: map[TypeURL]*clientType{}}
	for url, w := range cfg.Wants {
		t := c.typeOf(url)
		t.all = w.All
		for _, n := range w.Names {
			t.names[n] = struct{}{}
		}
	}
	for url, versions := range cfg.Accepted {
		maps.Copy(c.typeOf(url).accepted, versions)
	}
	return c
}

func (c *Client) typeOf(url TypeURL) *clientType {
	t := c.types[url]
	if t == nil {
		t = &clientType{
			url: url, names: map[string]struct{}{}, accepted: map[string]string{},
			add: map[string]struct{}{}, drop: map[string]struct{}{},
		}
		c.types[url] = t
		c.order = append(c.order, t)
		slices.SortFunc(c.order, func(a, b *clientType) int {
			return cmp.Or(cmp.Compare(typeOrder(a.url), typeOrder(b.url)), cmp.Compare(a.url, b.url))
		})
	}
	return t
}

// Open begins a new stream: everything is asked for again, with the versions
// that have been accepted. Updates of the stream before that are not Done may
// still be Done; their answer is not sent.
func (c *Client) Open() {
	c.stream++
	c.answers = nil
	for _, t := range c.order {
		t.opened = false
		clear(t.add)
		clear(t.drop)
		t.allChanged = false
	}
}

// Subscribe asks for names; a name asked for already is asked for again.
func (c *Client) Subscribe(url TypeURL, names ...string) {
	t := c.typeOf(url)
	for _, n := range names {
		t.names[n] = struct{}{}
		t.add[n] = struct{}{}
		delete(t.drop, n)
	}
}

// SubscribeAll asks for everything of a type.
func (c *Client) SubscribeAll(url TypeURL) {
	t := c.typeOf(url)
	if !t.all {
		t.all, t.allChanged = true, true
	}
}

// Unsubscribe gives names up, and forgets that they were accepted.
func (c *Client) Unsubscribe(url TypeURL, names ...string) {
	t := c.typeOf(url)
	for _, n := range names {
		if _, ok := t.names[n]; !ok {
			continue
		}
		delete(t.names, n)
		delete(t.add, n)
		t.drop[n] = struct{}{}
		if !t.all {
			delete(t.accepted, n)
		}
		if url == RouteType {
			c.ForgetHosts(n)
		}
	}
}

// ForgetHosts forgets that the virtual hosts of a route configuration were
// accepted: it has come whole, so that its next ones begin anew.
// [Client.Unsubscribe] does so by itself. Those that are not Done do not count
// any more either.
func (c *Client) ForgetHosts(table string) {
	t := c.types[VirtualHostType]
	if t == nil {
		return
	}
	for name := range t.accepted {
		if of, _, ok := cutHost(name); ok && of == table {
			delete(t.accepted, name)
		}
	}
	for _, u := range t.updates {
		for name := range u.names() {
			if of, _, ok := cutHost(name); ok && of == table {
				u.supersede(name)
			}
		}
	}
}

// Want is what is asked for of a type.
func (c *Client) Want(url TypeURL) Want {
	t := c.types[url]
	if t == nil {
		return Want{}
	}
	return Want{All: t.all, Names: sortedKeys(t.names)}
}

// Accepted is what has been accepted of a type, versions by name; a copy.
func (c *Client) Accepted(url TypeURL) map[string]string {
	t := c.types[url]
	if t == nil {
		return nil
	}
	return maps.Clone(t.accepted)
}

// Next gives the next request to send, or nil if there is none now. The caller
// adds the node to the first one of a stream.
func (c *Client) Next() *discovery.DeltaDiscoveryRequest {
	if c.stream == 0 {
		return nil
	}
	for _, t := range c.order {
		if !t.opened && (t.all || len(t.names) > 0) {
			return t.first()
		}
	}
	var req *discovery.DeltaDiscoveryRequest
	if len(c.answers) > 0 {
		req, c.answers = c.answers[0], c.answers[1:]
		c.types[TypeURL(req.GetTypeUrl())].takeChanges(req)
		return req
	}
	for _, t := range c.order {
		if len(t.add)+len(t.drop) > 0 || t.allChanged {
			req = &discovery.DeltaDiscoveryRequest{TypeUrl: string(t.url)}
			t.takeChanges(req)
			return req
		}
	}
	return nil
}

// first is the first request of a type on a stream.
func (t *clientType) first() *discovery.DeltaDiscoveryRequest {
	t.opened = true
	clear(t.add)
	clear(t.drop)
	t.allChanged = false
	req := &discovery.DeltaDiscoveryRequest{
		TypeUrl:                 string(t.url),
		ResourceNamesSubscribe:  sortedKeys(t.names),
		InitialResourceVersions: maps.Clone(t.accepted),
	}
	if t.all {
		req.ResourceNamesSubscribe = slices.Insert(req.ResourceNamesSubscribe, 0, wildcardName)
	}
	return req
}

func (t *clientType) takeChanges(req *discovery.DeltaDiscoveryRequest) {
	req.ResourceNamesSubscribe = sortedKeys(t.add)
	req.ResourceNamesUnsubscribe = sortedKeys(t.drop)
	if t.allChanged {
		req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, wildcardName)
	}
	clear(t.add)
	clear(t.drop)
	t.allChanged = false
}

// Response takes what the server sent. An error means that the server broke the
// protocol; the stream must end.
func (c *Client) Response(resp *discovery.DeltaDiscoveryResponse) (*Update, error) {
	url := TypeURL(resp.GetTypeUrl())
	t := c.types[url]
	if t == nil || !t.opened {
		return nil, fmt.Errorf("taking a response: type %q was not asked for", url)
	}
	if c.held >= c.cfg.MaxHeld {
		return nil, fmt.Errorf("taking a response for %q: %d updates are unanswered: %w", url, c.held, ErrLimit)
	}
	u := &Update{Type: url, Label: resp.GetSystemVersionInfo(), client: c, stream: c.stream, nonce: resp.GetNonce()}
	for _, r := range resp.GetResources() {
		if r.GetName() == "" || r.GetVersion() == "" || r.GetResource().GetTypeUrl() != string(url) {
			return nil, fmt.Errorf("taking a response for %q: resource %q has no name, version or body of that type", url, r.GetName())
		}
		if t.wants(r.GetName()) {
			u.Changed = append(u.Changed, NewResource(url, Resource{Name: r.GetName(), Version: r.GetVersion(), Body: r.GetResource().GetValue()}))
		}
	}
	for _, name := range resp.GetRemovedResources() {
		if t.wants(name) {
			u.Removed = append(u.Removed, name)
		}
	}
	t.updates = append(t.updates, u)
	c.held++
	return u, nil
}

func (t *clientType) wants(name string) bool {
	_, ok := t.names[name]
	return ok || t.all
}

// Done says what became of the update: nil that all of it was accepted, a
// *RejectError exactly what was not, any other error that nothing is known to
// have been. Only the first call counts.
func (u *Update) Done(err error) {
	if u.done {
		return
	}
	u.done = true
	c := u.client
	t := c.types[u.Type]
	i := slices.Index(t.updates, u)
	older := t.updates[:i]
	reject, exact := errors.AsType[*RejectError](err)
	if err == nil || exact {
		u.accept(t, reject, older)
	}
	t.updates = slices.Delete(t.updates, i, i+1)
	c.held--
	if u.stream != c.stream {
		return
	}
	req := &discovery.DeltaDiscoveryRequest{TypeUrl: string(u.Type), ResponseNonce: u.nonce}
	if err != nil {
		req.ErrorDetail = errorDetail(u.Type, err, reject)
	}
	c.answers = append(c.answers, req)
}

func (u *Update) accept(t *clientType, reject *RejectError, older []*Update) {
	refused := map[string]struct{}{}
	if reject != nil {
		for _, r := range reject.Refused {
			refused[r.Name] = struct{}{}
		}
	}
	settle := func(name, version string) {
		if _, ok := refused[name]; ok {
			return
		}
		if _, ok := u.superseded[name]; ok || !t.wants(name) {
			return
		}
		if version == "" {
			delete(t.accepted, name)
		} else {
			t.accepted[name] = version
		}
		for _, o := range older {
			o.supersede(name)
		}
	}
	for _, r := range u.Changed {
		settle(r.Name, r.Version)
	}
	for _, name := range u.Removed {
		settle(name, "")
	}
}

// supersede notes that what the update says of a name does not count any more.
func (u *Update) supersede(name string) {
	if u.superseded == nil {
		u.superseded = map[string]struct{}{}
	}
	u.superseded[name] = struct{}{}
}

// names yields those that the update is about.
func (u *Update) names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, r := range u.Changed {
			if !yield(r.Name) {
				return
			}
		}
		for _, name := range u.Removed {
			if !yield(name) {
				return
			}
		}
	}
}

func errorDetail(url TypeURL, err error, reject *RejectError) *rpcstatus.Status {
	st := &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: clip(err.Error())}
	if reject == nil {
		return st
	}
	for _, r := range reject.Refused {
		d, err := anypb.New(&errdetails.ResourceInfo{ResourceType: string(url), ResourceName: r.Name, Description: clip(r.Reason)})
		if err != nil {
			continue // a message with a fixed shape always encodes
		}
		st.Details = append(st.Details, d)
	}
	return st
}
