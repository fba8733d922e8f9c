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

// sightFor bounds the question what may be seen.
const sightFor = 5 * time.Second

// sight is what who comes without a token may see. Consul leaves out of its
// answers what they may not, and tells that only to who has a token.
type sight struct {
	mu sync.Mutex // guards all following fields, and lets one ask for all who wait
	// began is when it was asked last, turn the turn then; whole says that
	// everything may be seen, and open that nothing is forbidden to anybody.
	began       time.Time
	turn        uint64
	whole, open bool
}

// Sees reports whether everything may be seen without a token: at a time after
// the call, so that an answer that came before was not cut.
func (c *Client) Sees(ctx context.Context) (bool, error) {
	called, turn := time.Now(), c.present().number
	s := &c.sight
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == turn && (s.open || s.began.After(called)) {
		return s.whole, nil
	}
	began := time.Now()
	whole, open, err := c.authorize(ctx)
	if err != nil && ctx.Err() == nil { // perhaps its connection was closed meanwhile; a question with a body is not carried twice
		whole, open, err = c.authorize(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("asking what may be seen without a token: %w", err)
	}
	s.began, s.turn, s.whole, s.open = began, turn, whole, open
	return whole, nil
}

// authorize asks whether all services and nodes may be read.
func (c *Client) authorize(ctx context.Context) (whole, open bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sightFor)
	defer cancel()
	const rights = `[{"Resource":"service","Access":"read","Segment":""},{"Resource":"node","Access":"read","Segment":""}]`
	u := url.URL{Scheme: c.at.scheme, Host: c.at.address, Path: c.at.prefix + "/v1/internal/acl/authorize"}
	if c.cfg.Datacenter != "" {
		u.RawQuery = url.Values{"dc": {c.cfg.Datacenter}}.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), strings.NewReader(rights))
	if err != nil {
		return false, false, err
	}
	resp, err := carrier{c}.RoundTrip(req)
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
		return false, false, fmt.Errorf("%w: status %d: %s", ErrUnavailable, resp.StatusCode, plain(string(body)))
	}
}
