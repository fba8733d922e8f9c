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

// DefaultMaxPending is what a zero MaxPending means.
const DefaultMaxPending = 256

// Want is what a client subscribes to of one type.
type Want struct {
	All   bool
	Names []string // sorted
}

// ClientConfig is what a Client needs; the zero value works.
type ClientConfig struct {
	// Wants are the subscriptions from the first stream on; may be nil.
	Wants map[TypeURL]Want
	// Accepted is what the client has, versions by type and name: its
	// initial_resource_versions. May be nil.
	Accepted map[TypeURL]map[string]string
	// MaxPending bounds the updates that are not Done, over all types; 0 means
	// DefaultMaxPending.
	MaxPending int
}

// Client is the client half: the subscriptions and the accepted versions, across any
// number of streams. Not safe for concurrent use.
type Client struct {
	cfg   ClientConfig
	types map[TypeURL]*clientType
	order []*clientType
	// stream counts the streams: an update of an earlier one gets no answer.
	stream  uint64
	pending int
	// answers are the ACKs and NACKs to send, oldest first.
	answers []*discovery.DeltaDiscoveryRequest
}

type clientType struct {
	url      TypeURL
	all      bool
	names    map[string]struct{}
	accepted map[string]string
	// add, drop and allChanged are subscription changes that were not sent yet: names to
	// subscribe to, names to unsubscribe from, and the wildcard.
	add, drop  map[string]struct{}
	allChanged bool
	requested  bool // the first request of this stream has been given
	updates    []*Update
}

// Update is one response. The server waits until Done is called, which ACKs or NACKs it.
type Update struct {
	Type    TypeURL
	Changed []*Resource
	Removed []string
	// SystemVersion is the server's system_version_info, for people.
	SystemVersion string

	client     *Client
	stream     uint64
	nonce      string
	done       bool
	superseded map[string]struct{} // names whose fate a later update has decided; or nil
}

// RejectedResource is one resource that was rejected, and why.
type RejectedResource struct{ Name, Reason string }

// RejectError lists exactly the resources of an update that were rejected: all others in
// it were accepted.
type RejectError struct{ Rejected []RejectedResource }

// Error joins the names and reasons.
func (e *RejectError) Error() string {
	var b strings.Builder
	for i, r := range e.Rejected {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(r.Name + ": " + r.Reason)
		if b.Len() > maxReason {
			break
		}
	}
	return sanitize(b.String())
}

// NewClient makes a client without a stream; see [Client.Open].
func NewClient(cfg ClientConfig) *Client {
	cfg.MaxPending = cmp.Or(cfg.MaxPending, DefaultMaxPending)
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

// Open begins a new stream: all subscriptions are sent again, with the accepted versions.
// Updates of the stream before may still be Done, but their answer is not sent.
func (c *Client) Open() {
	c.stream++
	c.answers = nil
	for _, t := range c.order {
		t.requested = false
		clear(t.add)
		clear(t.drop)
		t.allChanged = false
	}
}

// Subscribe subscribes to names. A name that is subscribed already is sent again.
func (c *Client) Subscribe(url TypeURL, names ...string) {
	t := c.typeOf(url)
	for _, n := range names {
		t.names[n] = struct{}{}
		t.add[n] = struct{}{}
		delete(t.drop, n)
	}
}

// SubscribeAll subscribes to everything of a type (wildcard).
func (c *Client) SubscribeAll(url TypeURL) {
	t := c.typeOf(url)
	if !t.all {
		t.all, t.allChanged = true, true
	}
}

// Unsubscribe unsubscribes from names, and forgets that they were accepted.
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

// Forget forgets that names were accepted: the next stream asks for them again. It leaves the
// subscriptions as they are.
func (c *Client) Forget(url TypeURL, names ...string) {
	t := c.typeOf(url)
	for _, n := range names {
		delete(t.accepted, n)
	}
}

// Refused records that the peer's own peer rejects a version of a name that it is to have. The next
// stream lists the name with another version, so that the server sends it, or its removal.
func (c *Client) Refused(url TypeURL, name, version string) {
	c.typeOf(url).accepted[name] = refusedPrefix + version
}

// refusedPrefix begins the version of a name that is listed and not accepted. No version of a
// control plane begins so.
const refusedPrefix = "refused:"

// Accept records that a version of a name is accepted, which no update has decided. The server
// learns it by the next stream.
func (c *Client) Accept(url TypeURL, name, version string) {
	c.typeOf(url).accepted[name] = version
}

// Has reports whether a version of a name is accepted.
func (c *Client) Has(url TypeURL, name, version string) bool {
	t := c.types[url]
	return t != nil && t.accepted[name] == version
}

// ForgetHosts forgets that the virtual hosts of a route configuration were accepted: it
// came with inline virtual hosts, so that later ones by VHDS start from nothing.
// [Client.Unsubscribe] calls it. Virtual hosts in updates that are not Done do not count
// any more either.
func (c *Client) ForgetHosts(routeConfig string) {
	t := c.types[VirtualHostType]
	if t == nil {
		return
	}
	for name := range t.accepted {
		if of, _, ok := splitHostName(name); ok && of == routeConfig {
			delete(t.accepted, name)
		}
	}
	for _, u := range t.updates {
		for name := range u.names() {
			if of, _, ok := splitHostName(name); ok && of == routeConfig {
				u.supersede(name)
			}
		}
	}
}

// Want is the subscription to a type.
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

// Next returns the next request to send, or nil if there is none now. The caller adds the
// node to the first one of a stream.
func (c *Client) Next() *discovery.DeltaDiscoveryRequest {
	if c.stream == 0 {
		return nil
	}
	for _, t := range c.order {
		if !t.requested && (t.all || len(t.names) > 0) {
			return t.firstRequest()
		}
	}
	var req *discovery.DeltaDiscoveryRequest
	if len(c.answers) > 0 {
		req, c.answers = c.answers[0], c.answers[1:]
		c.types[TypeURL(req.GetTypeUrl())].takeSubscriptions(req)
		return req
	}
	for _, t := range c.order {
		if len(t.add)+len(t.drop) > 0 || t.allChanged {
			req = &discovery.DeltaDiscoveryRequest{TypeUrl: string(t.url)}
			t.takeSubscriptions(req)
			return req
		}
	}
	return nil
}

// firstRequest is the first request of a type on a stream.
func (t *clientType) firstRequest() *discovery.DeltaDiscoveryRequest {
	t.requested = true
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

func (t *clientType) takeSubscriptions(req *discovery.DeltaDiscoveryRequest) {
	req.ResourceNamesSubscribe = sortedKeys(t.add)
	req.ResourceNamesUnsubscribe = sortedKeys(t.drop)
	if t.allChanged {
		req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, wildcardName)
	}
	clear(t.add)
	clear(t.drop)
	t.allChanged = false
}

// Response takes a response. An error means that the server broke the protocol; the stream
// must end.
func (c *Client) Response(resp *discovery.DeltaDiscoveryResponse) (*Update, error) {
	url := TypeURL(resp.GetTypeUrl())
	t := c.types[url]
	if t == nil || !t.requested {
		return nil, fmt.Errorf("taking a response: type %q is not subscribed to", url)
	}
	if c.pending >= c.cfg.MaxPending {
		return nil, fmt.Errorf("taking a response for %q: %d updates are unanswered: %w", url, c.pending, ErrLimit)
	}
	u := &Update{Type: url, SystemVersion: resp.GetSystemVersionInfo(), client: c, stream: c.stream, nonce: resp.GetNonce()}
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
	c.pending++
	return u, nil
}

func (t *clientType) wants(name string) bool {
	_, ok := t.names[name]
	return ok || t.all
}

// Done ends the update. A nil error accepts all of it, a *RejectError exactly what it does
// not list. After any other error nothing counts as accepted. Only the first call counts.
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
	c.pending--
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
	rejected := map[string]struct{}{}
	if reject != nil {
		for _, r := range reject.Rejected {
			rejected[r.Name] = struct{}{}
		}
	}
	decide := func(name, version string) {
		if _, ok := rejected[name]; ok {
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
		decide(r.Name, r.Version)
	}
	for _, name := range u.Removed {
		decide(name, "")
	}
}

// supersede records that the update does not decide about a name any more.
func (u *Update) supersede(name string) {
	if u.superseded == nil {
		u.superseded = map[string]struct{}{}
	}
	u.superseded[name] = struct{}{}
}

// names yields the names in the update.
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
	st := &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: sanitize(err.Error())}
	if reject == nil {
		return st
	}
	for _, r := range reject.Rejected {
		d, err := anypb.New(&errdetails.ResourceInfo{ResourceType: string(url), ResourceName: r.Name, Description: sanitize(r.Reason)})
		if err != nil {
			continue // a message with a fixed shape always encodes
		}
		st.Details = append(st.Details, d)
	}
	return st
}
