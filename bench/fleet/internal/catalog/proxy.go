package catalog

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// Counts is what has been asked of Consul.
type Counts struct {
	// Reads are answers to what did not wait, Wakes answers to what did.
	Reads, Wakes int
	// Throttled are answers 429, Failed all others that are no success.
	Throttled, Failed int
	// Bytes are those of all answers.
	Bytes int64
	// Connections is how many were opened.
	Connections int
}

// Minus is what has been asked since.
func (c Counts) Minus(before Counts) Counts {
	return Counts{
		c.Reads - before.Reads, c.Wakes - before.Wakes, c.Throttled - before.Throttled, c.Failed - before.Failed,
		c.Bytes - before.Bytes, c.Connections - before.Connections,
	}
}

// Peaks is the most that was on its way at once.
type Peaks struct{ Reads, Waiting, Connections int }

// Counter is a reverse proxy in front of Consul that counts.
type Counter struct {
	proxy *httputil.ReverseProxy

	mu     sync.Mutex // guards all following fields
	counts Counts
	now    Peaks
	peaks  Peaks
}

// NewCounter makes a proxy to a Consul, by a transport of its own.
func NewCounter(to *url.URL, transport http.RoundTripper) *Counter {
	c := &Counter{}
	c.proxy = &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport,
		ModifyResponse: func(res *http.Response) error {
			c.answered(res.StatusCode)
			// It is answered before the asker can know that it is, and ask again.
			if done, ok := res.Request.Context().Value(doneKey{}).(func()); ok {
				res.Body = &body{res.Body, done}
			}
			return nil
		},
		// Whoever asked has gone.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return c
}

// doneKey is that of the func in a request's context that counts its end.
type doneKey struct{}

// body is an answer that says when it has been read.
type body struct {
	io.ReadCloser

	done func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.done()
	}
	return n, err
}

// Server is the HTTP server of a counter.
func (c *Counter) Server() *http.Server {
	return &http.Server{Handler: c, ConnState: c.connection} //nolint:gosec // blocking queries last as long as they like
}

// ServeHTTP asks Consul.
func (c *Counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	index := r.URL.Query().Get("index")
	waits := index != "" && index != "0"
	c.count(waits, 1)
	done := sync.OnceFunc(func() { c.count(waits, -1) })
	defer done()
	c.proxy.ServeHTTP(&meter{w, c}, r.WithContext(context.WithValue(r.Context(), doneKey{}, done)))
}

// Counts is what has been asked until now.
func (c *Counter) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// Peaks is the most since it was asked for the last time.
func (c *Counter) Peaks() Peaks {
	c.mu.Lock()
	defer c.mu.Unlock()
	peaks := c.peaks
	c.peaks = c.now
	return peaks
}

func (c *Counter) count(waits bool, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, peak, done := &c.now.Reads, &c.peaks.Reads, &c.counts.Reads
	if waits {
		now, peak, done = &c.now.Waiting, &c.peaks.Waiting, &c.counts.Wakes
	}
	*now += by
	*peak = max(*peak, *now)
	if by < 0 {
		*done++
	}
}

func (c *Counter) answered(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case status == http.StatusTooManyRequests:
		c.counts.Throttled++
	case status >= http.StatusBadRequest:
		c.counts.Failed++
	}
}

func (c *Counter) connection(_ net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.counts.Connections++
		c.now.Connections++
		c.peaks.Connections = max(c.peaks.Connections, c.now.Connections)
	case http.StateClosed, http.StateHijacked:
		c.now.Connections--
	case http.StateActive, http.StateIdle:
	}
}

// meter counts the bytes of an answer.
type meter struct {
	http.ResponseWriter

	counter *Counter
}

// Unwrap lets the proxy flush.
func (m *meter) Unwrap() http.ResponseWriter { return m.ResponseWriter }

func (m *meter) Write(b []byte) (int, error) {
	n, err := m.ResponseWriter.Write(b)
	m.counter.mu.Lock()
	defer m.counter.mu.Unlock()
	m.counter.counts.Bytes += int64(n)
	return n, err
}
