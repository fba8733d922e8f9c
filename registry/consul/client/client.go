package client

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/consul/api"
)

// readSlots is how many questions that are answered at once are asked at the
// same time.
const readSlots = 16

// Client reaches one Consul agent or server. It may be used from any goroutine.
type Client struct {
	cfg   Config
	at    target
	api   *api.Client
	slots chan struct{}
}

// New checks the configuration. It starts nothing and reads no file.
func New(c Config) (*Client, error) {
	cfg, at, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	cl := &Client{cfg: cfg, at: at, slots: make(chan struct{}, readSlots)}
	conf := &api.Config{
		Address: at.address, Scheme: at.scheme, PathPrefix: at.prefix, HttpClient: &http.Client{Transport: http.DefaultTransport},
		Datacenter: cfg.Datacenter, Namespace: cfg.Namespace, Partition: cfg.Partition,
		Token: "-",
	}
	if cl.api, err = api.NewClient(conf); err != nil {
		return nil, fmt.Errorf("making a client of Consul: %w", err)
	}
	return cl, nil
}

// API is the client of Consul's own package, with our connections and token.
func (c *Client) API() *api.Client { return c.api }

// HTTP2 reports whether many questions share a connection.
func (c *Client) HTTP2() bool { return c.at.scheme == "https" }

// Meta is what Consul says of an answer.
type Meta struct {
	// Index is Consul's, of the table or service that was asked for.
	Index uint64
	// Filtered says that the token may not see all of it.
	Filtered bool
	// LastContact is how long ago the server heard from the leader; 0 where it is
	// the leader.
	LastContact time.Duration
	// Fresh says that the answer is no continuation of the one before: it is the
	// first, or the first after the index went backwards, after a failure, with
	// another token or of another leader.
	Fresh bool
}

// Query is a question of which the answer changes.
type Query[T any] struct {
	// Name is for logs.
	Name string
	// Read asks. It must pass the options on as they are.
	Read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)
	// Told, if not nil, is called with what goes wrong, and with nil when it is
	// over; from the goroutine that calls Follow.
	Told func(error)
}

// Follow asks until ctx is done, by blocking queries, and calls got with each new
// answer, in order, from the goroutine that calls Follow.
func Follow[T any](ctx context.Context, c *Client, q Query[T], got func(T, Meta)) {
	index := uint64(0)
	for ctx.Err() == nil {
		v, m, err := q.Read(c.api, (&api.QueryOptions{WaitIndex: index}).WithContext(ctx))
		if q.Told != nil && ctx.Err() == nil {
			q.Told(classify(err))
		}
		if err != nil {
			index = 0
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		if m.LastIndex != index {
			got(v, Meta{Index: m.LastIndex, Filtered: m.ResultsFilteredByACLs, LastContact: m.LastContact, Fresh: index == 0})
		}
		index = m.LastIndex
	}
}

// Get asks once. At most sixteen of a client's questions are asked at the same
// time; others wait.
func Get[T any](ctx context.Context, c *Client, read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)) (T, Meta, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		var none T
		return none, Meta{}, ctx.Err()
	}
	v, m, err := read(c.api, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return v, Meta{}, classify(err)
	}
	return v, Meta{Index: m.LastIndex, Filtered: m.ResultsFilteredByACLs, LastContact: m.LastContact, Fresh: true}, nil
}
