package envoy_test

import (
	"bufio"
	"io"
	"net"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// receivedRequest is a request as an application gets it.
type receivedRequest struct {
	head, method, target, id string
	headers                  map[string][]string
	// fault is what nobody may ever get.
	fault string
}

func (r receivedRequest) host() string { return strings.Join(r.headers["host"], ",") }

// peer is the client that the proxy names.
func (r receivedRequest) peer() string {
	all := strings.Join(r.headers["x-forwarded-client-cert"], ",")
	element := all[strings.LastIndex(all, ",")+1:]
	for part := range strings.SplitSeq(element, ";") {
		if id, ok := strings.CutPrefix(part, "URI=spiffe://"); ok {
			return id
		}
	}
	return ""
}

// recordingApp is an application that records each request, byte by byte, and answers with 200.
type recordingApp struct {
	mu  sync.Mutex // guards all
	all []receivedRequest
}

func (a *recordingApp) list() []receivedRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

func (a *recordingApp) serve(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(envoytest.Patience))
	r := bufio.NewReader(c)
	for {
		var head strings.Builder
		for !strings.HasSuffix(head.String(), "\r\n\r\n") {
			b, err := r.ReadByte()
			if err != nil {
				if head.Len() > 0 {
					a.record(receivedRequest{head: head.String(), fault: "half a request"})
				}
				return
			}
			_ = head.WriteByte(b)
		}
		got := parseReceived(head.String())
		a.record(got)
		var body io.Reader = strings.NewReader("")
		if got.headers["transfer-encoding"] != nil {
			body = httputil.NewChunkedReader(r)
		} else if n, err := strconv.ParseInt(strings.Join(got.headers["content-length"], ","), 10, 64); err == nil {
			body = io.LimitReader(r, n)
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			return
		}
		if got.headers["transfer-encoding"] != nil { // trailers
			for line := ""; line != "\r\n"; {
				var err error
				if line, err = r.ReadString('\n'); err != nil {
					return
				}
			}
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"); err != nil || got.fault != "" {
			return
		}
	}
}

func (a *recordingApp) record(r receivedRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, r)
}

// parseReceived reads a head strictly: what two applications may read in two ways is a fault.
func parseReceived(head string) receivedRequest {
	lines := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")
	out := receivedRequest{head: head, headers: map[string][]string{}}
	parts := strings.Split(lines[0], " ")
	if len(parts) != 3 || parts[2] != "HTTP/1.1" {
		out.fault = "a request line that can be read in several ways"
		return out
	}
	out.method, out.target = parts[0], parts[1]
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") || strings.ContainsAny(line, "\r\n\x00") {
			out.fault = "a header that can be read in several ways"
		}
		name = strings.ToLower(name)
		out.headers[name] = append(out.headers[name], strings.TrimSpace(value))
	}
	if ids := out.headers["x-attack"]; len(ids) > 0 {
		out.id = ids[0]
	}
	length, chunked := out.headers["content-length"], out.headers["transfer-encoding"]
	switch {
	case len(length) > 0 && len(chunked) > 0, len(length) > 1, len(chunked) > 1, len(chunked) == 1 && chunked[0] != "chunked", len(length) == 1 && strings.Trim(length[0], "0123456789") != "":
		out.fault = "a length that can be read in several ways"
	case len(out.headers["host"]) != 1:
		out.fault = "not one host"
	}
	return out
}
