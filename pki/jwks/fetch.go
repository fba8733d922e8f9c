package jwks

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-jose/go-jose/v4/json"
)

const (
	// discoveryPath is where an issuer has its OpenID configuration (OpenID Connect
	// Discovery 1.0, section 4).
	discoveryPath = "/.well-known/openid-configuration"
	// maxRedirects bounds the redirects of one request.
	maxRedirects = 5
	// maxHeader bounds the headers of an answer, in bytes.
	maxHeader = 64 << 10
	// maxURI bounds a URI, in bytes.
	maxURI = 2048
)

// location is where a key set is: what makes two sources one.
type location struct {
	// uri is that of the key set or, for discovery, the issuer.
	uri       string
	discovery bool
	// private allows private addresses. What one source may fetch is never given to
	// another that may not.
	private bool
}

// job asks for one key set.
type job struct {
	location

	timeout time.Duration
	// hash is that of the bytes that were read last, or zero.
	hash [sha256.Size]byte
}

// answer is what came of a job.
type answer struct {
	// unchanged says that the bytes are those of job.hash; nothing else is set then but from.
	unchanged bool
	set       *Set
	unusable  []Unusable
	// from says where the set is from, without credentials; also of an error, where it is
	// known.
	from string
	hash [sha256.Size]byte
	err  error
}

// fetcher reads key sets. Several goroutines call it.
type fetcher interface {
	fetch(ctx context.Context, j job) answer
	// host is what too many jobs shall not ask at a time.
	host(l location) string
	// every is how often a set is read, and how often one that cannot be.
	every() (refresh, firstRetry, lastRetry time.Duration)
}

// read makes an answer of bytes.
func (j job) read(body []byte, from string) answer {
	a := answer{from: from, hash: sha256.Sum256(body)}
	if a.hash == j.hash {
		a.unchanged = true
		return a
	}
	a.set, a.unusable, a.err = Parse(body)
	return a
}

// addressPolicy says from where keys may be fetched; tests have one that allows loopback.
type addressPolicy interface {
	check(to netip.AddrPort, privateToo bool) error
	checkName(host string, port uint16, privateToo bool) error
}

// web fetches over the network.
type web struct {
	policy addressPolicy
	roots  *roots
	// proxy is nil without one.
	proxy *url.URL
	// resolver is nil for that of the system.
	resolver *net.Resolver
	refresh  time.Duration
}

func (w *web) every() (refresh, firstRetry, lastRetry time.Duration) {
	return w.refresh, firstRetryAfter, min(lastRetryAfter, w.refresh)
}

func (w *web) host(l location) string {
	u, err := url.Parse(l.uri)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

func (w *web) fetch(ctx context.Context, j job) answer {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	uri, own := j.uri, true
	if j.discovery {
		var err error
		if uri, err = w.discover(ctx, j); err != nil {
			return answer{from: redact(j.uri), err: fmt.Errorf("discovering the keys of the issuer: %w", err)}
		}
		own = false
	}
	body, err := w.get(ctx, uri, j.private, own)
	if err != nil {
		return answer{from: redact(uri), err: err}
	}
	return j.read(body, redact(uri))
}

// discover asks the issuer where its keys are, as Istio does: the issuer that the document
// names is not looked at.
func (w *web) discover(ctx context.Context, j job) (string, error) {
	uri := strings.TrimSuffix(j.uri, "/") + discoveryPath
	body, err := w.get(ctx, uri, j.private, true)
	if err != nil {
		return "", err
	}
	var doc struct {
		URI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(body, &doc); err != nil || doc.URI == "" {
		return "", fmt.Errorf("%s is not an OpenID configuration with a \"jwks_uri\"", redact(uri))
	}
	if isHTTPS(uri) && !isHTTPS(doc.URI) {
		return "", fmt.Errorf("%s is read by https, and says that the keys are read without", redact(uri))
	}
	return doc.URI, nil
}

func isHTTPS(uri string) bool {
	scheme, _, _ := strings.Cut(uri, ":")
	return strings.EqualFold(scheme, "https")
}

// get reads one URI. Only those that are configured may have credentials.
func (w *web) get(ctx context.Context, uri string, privateToo, own bool) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, uri, http.NoBody)
	if err != nil {
		return nil, errors.New("the URI cannot be read") // the cause has the URI in it
	}
	if err := w.checkURL(req.URL, privateToo, own); err != nil {
		return nil, err
	}
	pool, err := w.roots.current()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext:            w.dialer(privateToo).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1 is enough
		DisableKeepAlives:      true,
		DisableCompression:     true, // a small answer could become a large one
		MaxResponseHeaderBytes: maxHeader,
	}
	if w.proxy != nil {
		transport.Proxy = http.ProxyURL(w.proxy)
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		if via[len(via)-1].URL.Scheme == "https" && next.URL.Scheme != "https" {
			return errors.New("a redirect leads from https to http")
		}
		next.Header.Del("Referer") // it has the query of the URI
		return w.checkURL(next.URL, privateToo, false)
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, plain(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, fmt.Errorf("the answer has the status %d", resp.StatusCode)
	}
	if c := resp.Header.Get("Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") {
		return nil, errors.New("the answer is compressed, which was not asked for")
	}
	if resp.ContentLength > MaxBody {
		return nil, fmt.Errorf("the answer has %d bytes; at most %d are read", resp.ContentLength, MaxBody)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	if err != nil {
		return nil, plain(ctx, err)
	}
	if len(body) > MaxBody {
		return nil, fmt.Errorf("the answer has more than %d bytes", MaxBody)
	}
	return body, nil
}

// dialer makes connections to addresses of which the policy approves. It is asked with the
// very address of each connection, after names were looked up, so that a name that leads
// elsewhere the next time gains nothing. The proxy is where the operator wants it.
func (w *web) dialer(privateToo bool) *net.Dialer {
	d := &net.Dialer{Resolver: w.resolver}
	if w.proxy == nil {
		d.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return &AddressError{address, "not an IP address", false}
			}
			return w.policy.check(to, privateToo)
		}
	}
	return d
}

// checkURL judges a URL before anything is sent.
func (w *web) checkURL(u *url.URL, privateToo, credentials bool) error {
	if strings.ContainsFunc(u.Host, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return errors.New("the host of the URI is not in ASCII: write it as xn--…") // １２７.0.0.1 is an address
	}
	port := uint16(80)
	switch u.Scheme {
	case "http":
	case "https":
		port = 443
	default:
		return errors.New("keys are fetched by http and https only")
	}
	if len(u.String()) > maxURI {
		return fmt.Errorf("the URI is longer than %d bytes", maxURI)
	}
	if u.User != nil && !credentials {
		return errors.New("the issuer leads to a URI with a user name in it")
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return errors.New("the URI has a port that is none")
		}
		port = uint16(n)
	}
	return w.policy.checkName(u.Hostname(), port, privateToo)
}

// plain takes the URI out of an error of net/http: it may have credentials.
func plain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("the answer was not there in time")
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Source != nil && op.Addr != nil {
		return fmt.Errorf("%s %s: %w", op.Op, op.Addr, op.Err) // without our port, which varies
	}
	return err
}

// redact is a URI for people, without credentials: user, query and fragment are left out.
func redact(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Host == "" {
		if i := strings.LastIndexByte(uri, '@'); i >= 0 && strings.Contains(uri[:i], ":") {
			uri = uri[i+1:]
		}
		uri, _, _ = strings.Cut(uri, "?")
		uri, _, _ = strings.Cut(uri, "#")
		return uri
	}
	u.User, u.RawQuery, u.Fragment, u.RawFragment, u.ForceQuery = nil, "", "", "", false
	return u.String()
}
