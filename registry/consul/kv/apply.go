package kv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// ConflictError says that keys are not as they were read, so that a transaction was
// not made.
type ConflictError struct {
	// Keys are the keys and what became of them.
	Keys []ChangedKey
}

// ChangedKey is a key that somebody else has changed.
type ChangedKey struct {
	Key string
	// How is what became of it, for people.
	How string
}

// Error implements error.
func (c *ConflictError) Error() string {
	lines := make([]string, len(c.Keys))
	for i, k := range c.Keys {
		lines[i] = k.Key + " " + k.How
	}
	return strings.Join(lines, "; ")
}

// UncertainError says that nobody knows whether a transaction was made.
type UncertainError struct{ Err error }

// Error implements error.
func (u *UncertainError) Error() string {
	return fmt.Sprintf("Consul did not answer, and may have written nevertheless: %v", u.Err)
}

// Unwrap returns what went wrong.
func (u *UncertainError) Unwrap() error { return u.Err }

// writeTimeout is how long Consul may take to answer a write.
const writeTimeout = 30 * time.Second

// Apply makes the changes of one transaction: all, or none with an error, which
// is a [ConflictError] where a key is not as it was read, and an [UncertainError]
// where no answer came.
func (s *Store) Apply(ctx context.Context, changes []Change) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if len(changes) == 1 && changes[0].size() > maxBody {
		return s.put(ctx, &changes[0])
	}
	ops := make(api.TxnOps, len(changes))
	for i := range changes {
		ops[i] = changes[i].op()
	}
	answer, err := s.transact(ctx, ops)
	switch {
	case err != nil:
		return s.refused(err)
	case answer == nil:
		return nil
	}
	var (
		stale []Change
		errs  []error
	)
	for _, e := range answer.Errors {
		switch {
		case strings.Contains(e.What, "Permission denied"):
			errs = append(errs, s.denied(e.What))
		case strings.Contains(e.What, "is stale") && e.OpIndex < len(changes):
			stale = append(stale, changes[e.OpIndex])
		default:
			errs = append(errs, fmt.Errorf("writing: %s", e.What))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return s.conflict(ctx, stale)
}

// put makes a change that is too large for a transaction.
func (s *Store) put(ctx context.Context, c *Change) error {
	done, _, err := s.client.API().KV().CAS(
		&api.KVPair{Key: c.Key, Value: c.New, ModifyIndex: c.index, Flags: c.flags}, (&api.WriteOptions{}).WithContext(ctx))
	switch {
	case err != nil:
		return s.refused(err)
	case !done:
		return s.conflict(ctx, []Change{*c})
	default:
		return nil
	}
}

// transact makes a transaction, and returns nil; or it returns why Consul did not
// make it. Package api returns errors of this request without their status.
func (s *Store) transact(ctx context.Context, ops api.TxnOps) (*api.TxnResponse, error) {
	_, err := s.client.API().Raw().Write("/v1/txn", ops, nil, (&api.WriteOptions{}).WithContext(ctx))
	status, is := errors.AsType[api.StatusError](err)
	if !is || status.Code != http.StatusConflict {
		return nil, err
	}
	answer := &api.TxnResponse{}
	if err := json.Unmarshal([]byte(status.Body), answer); err != nil {
		return nil, fmt.Errorf("reading Consul's answer: %w", err)
	}
	return answer, nil
}

// refused says what an error of a request to write means.
func (s *Store) refused(err error) error {
	if status, is := errors.AsType[api.StatusError](err); is && status.Code == http.StatusRequestEntityTooLarge {
		return fmt.Errorf("writing: Consul takes less at a time than it does by default (limits.txn_max_req_len, limits.kv_max_value_size): %w", err)
	}
	if d, is := errors.AsType[*client.Denied](client.Classify(err)); is {
		return s.denied(d.Reason)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &UncertainError{err}
}

func (s *Store) denied(text string) error {
	return fmt.Errorf("%w; give it %s", &client.Denied{Reason: text}, s.rule("write"))
}

// conflict finds out what became of keys.
func (s *Store) conflict(ctx context.Context, changes []Change) error {
	out := &ConflictError{}
	for _, c := range changes {
		now, err := s.get(ctx, c.Key)
		if err != nil {
			return fmt.Errorf("reading %q, which is not as it was: %w", c.Key, err)
		}
		out.Keys = append(out.Keys, ChangedKey{c.Key, c.conflict(now)})
	}
	return out
}

// conflict says what somebody else did with a key; now is nil where it is gone.
func (c *Change) conflict(now *api.KVPair) string {
	by := ""
	if now != nil && now.Session != "" {
		by = " (session " + now.Session + " holds its lock)"
	}
	switch {
	case now == nil && c.index == 0:
		return "was made and deleted meanwhile by somebody else"
	case now == nil:
		return fmt.Sprintf("was deleted meanwhile by somebody else; it was at index %d", c.index)
	case c.index == 0:
		return fmt.Sprintf("was made meanwhile by somebody else, at index %d%s", now.ModifyIndex, by)
	case bytes.Equal(now.Value, c.Old):
		return fmt.Sprintf("was written meanwhile by somebody else, with the content it had: it was at index %d and is at %d%s", c.index, now.ModifyIndex, by)
	case bytes.Equal(now.Value, c.New):
		return fmt.Sprintf("was written meanwhile by somebody else, just as it is here: it was at index %d and is at %d%s", c.index, now.ModifyIndex, by)
	default:
		return fmt.Sprintf("was changed meanwhile by somebody else: it was at index %d and is at %d%s", c.index, now.ModifyIndex, by)
	}
}
