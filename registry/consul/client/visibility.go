package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// visibilityTimeout bounds the query of what may be read without a token.
const visibilityTimeout = 5 * time.Second

// visibility is what a client without a token may read. Consul leaves the rest out of
// its answers, and says so only to clients with a token.
type visibility struct {
	mu sync.Mutex // guards all following fields, and lets one ask for all who wait
	// checkedAt and generation are of the latest check; all says that everything may be
	// read, and aclOff that ACLs are off.
	checkedAt   time.Time
	generation  uint64
	all, aclOff bool
}

// SeesAll reports whether everything may be read without a token, by a check that
// began after the call: an answer that came before it was whole then.
func (c *Client) SeesAll(ctx context.Context) (bool, error) {
	called, gen := time.Now(), c.currentGeneration().number
	s := &c.visibility
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation == gen && (s.aclOff || s.checkedAt.After(called)) {
		return s.all, nil
	}
	began := time.Now()
	whole, open, err := c.authorize(ctx)
	if err != nil && ctx.Err() == nil { // perhaps its connection was closed; the pool does not repeat a request with a body
		whole, open, err = c.authorize(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("asking what may be seen without a token: %w", err)
	}
	s.checkedAt, s.generation, s.all, s.aclOff = began, gen, whole, open
	return whole, nil
}

// authorize asks whether all services and nodes may be read.
func (c *Client) authorize(ctx context.Context) (whole, open bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, visibilityTimeout)
	defer cancel()
	const rights = `[{"Resource":"service","Access":"read","Segment":""},{"Resource":"node","Access":"read","Segment":""}]`
	u := url.URL{Scheme: c.target.scheme, Host: c.target.address, Path: c.target.prefix + "/v1/internal/acl/authorize"}
	if c.cfg.Datacenter != "" {
		u.RawQuery = url.Values{"dc": {c.cfg.Datacenter}}.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), strings.NewReader(rights))
	if err != nil {
		return false, false, err
	}
	resp, err := roundTripper{c}.RoundTrip(req)
	if err != nil {
		return false, false, Classify(err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSecret))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return false, false, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		var answers []struct{ Allow bool }
		if err := json.Unmarshal(body, &answers); err != nil {
			return false, false, fmt.Errorf("reading Consul's answer: %w", err)
		}
		whole = len(answers) == 2
		for _, x := range answers {
			whole = whole && x.Allow
		}
		return whole, false, nil
	case http.StatusUnauthorized, http.StatusNotFound: // no ACLs, or none of a Consul of today
		return true, true, nil
	case http.StatusForbidden:
		return false, false, nil
	default:
		return false, false, fmt.Errorf("%w: status %d: %s", ErrUnavailable, resp.StatusCode, sanitize(string(body)))
	}
}
