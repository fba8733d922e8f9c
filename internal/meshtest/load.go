package meshtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// Answer is what the small service says.
type Answer struct {
	Name   string  `json:"name"`
	Caller string  `json:"caller"`
	Next   *Answer `json:"next"`
}

// Client asks over HTTP. Keep-alive as applications do.
type Client struct {
	http *http.Client
	// Host is the Host header; empty means the URL's.
	Host string
}

// NewClient makes a client whose connections end with the test.
func NewClient(tb testing.TB, host string) *Client {
	tb.Helper()
	return NewClientOver(tb, host, &http.Transport{MaxIdleConnsPerHost: 64})
}

// NewClientOver is NewClient with a transport of its own.
func NewClientOver(tb testing.TB, host string, tr *http.Transport) *Client {
	tb.Helper()
	tb.Cleanup(tr.CloseIdleConnections)
	return &Client{http: &http.Client{Transport: tr, Timeout: envoytest.Attempt}, Host: host}
}

// Fresh is the same client with a new connection for each request, as curl has.
func (c *Client) Fresh() *Client {
	tr := &http.Transport{}
	if own, ok := c.http.Transport.(*http.Transport); ok {
		tr = own.Clone()
	}
	tr.DisableKeepAlives = true
	return &Client{http: &http.Client{Transport: tr, Timeout: c.http.Timeout}, Host: c.Host}
}

// Get asks once. Any status but 200 is an error.
func (c *Client) Get(ctx context.Context, url string) (*Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	if c.Host != "" {
		req.Host = c.Host
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", res.StatusCode, body)
	}
	var a Answer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("decoding %q: %w", body, err)
	}
	return &a, nil
}

// AwaitAnswers waits until 50 requests in a row are answered and each of the
// instances has had one. A proxy is live a moment before the others have heard of
// it: until then they avoid it, and who is the only instance of a subset is missed.
func (c *Client) AwaitAnswers(tb testing.TB, url string, instances ...string) {
	tb.Helper()
	envoytest.Eventually(tb, envoytest.Patience, func() error {
		seen := map[string]bool{}
		for range 50 {
			a, err := c.Get(tb.Context(), url)
			if err != nil {
				return err
			}
			for ; a != nil; a = a.Next {
				seen[a.Name] = true
			}
		}
		for _, name := range instances {
			if !seen[name] {
				return fmt.Errorf("%s has not answered", name)
			}
		}
		return nil
	})
}

// Load is a bounded stream of requests in the background.
type Load struct {
	cancel context.CancelFunc
	ended  <-chan struct{} // closed when no more requests are sent
	wg     sync.WaitGroup

	mu     sync.Mutex // guards all following fields
	good   int
	failed int
	errs   []string
	last   time.Time // of the last failure
	first  time.Time // of the first failure
}

// loadTime bounds a load that nobody stops. It is no bound of a test's phases: those
// take as long as the machine needs.
const loadTime = 10 * time.Minute

// StartLoad sends rate requests a second until Stop or the test's end. No more wait
// for their answers than are sent in one second, so that a machine which is too slow
// for the rate gets fewer requests and not a queue that grows.
func (c *Client) StartLoad(tb testing.TB, url string, rate int) *Load {
	tb.Helper()
	return StartLoad(tb, rate, func(ctx context.Context) error {
		_, err := c.Get(ctx, url)
		return err
	})
}

// StartLoad is [Client.StartLoad] with any request; ask ends by itself.
func StartLoad(tb testing.TB, rate int, ask func(context.Context) error) *Load {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), loadTime)
	l := &Load{cancel: cancel, ended: ctx.Done()}
	tb.Cleanup(func() { l.Stop() })
	slots := make(chan struct{}, rate)
	l.wg.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			l.wg.Go(func() {
				began := time.Now()
				err := ask(context.WithoutCancel(ctx))
				<-slots
				l.count(began, err)
			})
		}
	})
	return l
}

func (l *Load) count(began time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.good++
		return
	}
	l.failed++
	l.last = time.Now()
	if l.first.IsZero() {
		l.first = l.last
	}
	if len(l.errs) < 5 {
		l.errs = append(l.errs, fmt.Sprintf("sent at %s, %s before: %v", began.Format(time.TimeOnly+".000"), time.Since(began).Round(time.Millisecond), err))
	}
}

// Result is what a load came to.
type Result struct {
	Good, Failed int
	// Errors are the first few.
	Errors []string
	// FirstFailure and LastFailure are zero where none failed.
	FirstFailure, LastFailure time.Time
}

// Now is the result so far.
func (l *Load) Now() Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Result{l.good, l.failed, l.errs, l.first, l.last}
}

// Stop ends the load and waits for the requests under way.
func (l *Load) Stop() Result {
	l.cancel()
	l.wg.Wait()
	return l.Now()
}

// Wait waits until n more requests have been answered well.
func (l *Load) Wait(tb testing.TB, n int) {
	tb.Helper()
	from := l.Now().Good
	envoytest.Eventually(tb, envoytest.Patience, func() error {
		now := l.Now()
		if now.Good >= from+n {
			return nil
		}
		select {
		case <-l.ended:
			tb.Fatalf("the load has ended before %d more requests were answered: %+v", n, now)
		default:
		}
		return fmt.Errorf("only %d of %d requests were answered: %+v", now.Good-from, n, now)
	})
}
