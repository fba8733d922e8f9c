package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/hashicorp/consul/api"
)

var (
	// ErrThrottled says that the server answers less than it is asked: 429, or
	// 503 of its rate limits.
	ErrThrottled = errors.New("Consul limits the rate of requests")
	// ErrUnavailable says that no server answers, or that the one that does
	// cannot: no leader, no route to it, an error of its own.
	// It is the server's state, or that of the way to it: asking again helps.
	ErrUnavailable = errors.New("Consul is not available")
	// ErrFilter says that Consul cannot make anything of the filter.
	ErrFilter = errors.New("Consul does not take the filter (--consul-filter)")
)

// Denied is an answer that the token may not have.
type Denied struct { //nolint:errname // it is a state, too
	// Rule is what the token lacks, such as `service:read on "web"`; empty where
	// Consul does not say, or does not know the token at all.
	Rule string
	// Reason is for people.
	Reason string
}

// Error implements error.
func (d *Denied) Error() string {
	if d.Rule != "" {
		return "Consul denies access: the token lacks " + d.Rule
	}
	return "Consul denies access: " + d.Reason
}

// maxReason bounds what is repeated of an answer, in bytes.
const maxReason = 300

// missingPermission finds the rule in what Consul says of a denial.
var missingPermission = regexp.MustCompile(`lacks permission '([a-z_]+:[a-z_]+)'(?: on "([^"]{0,256})")?`)

// Classify says what an error of package api means: a [Denied], an [Unusable], or
// one of the errors of this package.
func Classify(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		return err
	}
	_, unusable := errors.AsType[Unusable](err)
	_, syntax := errors.AsType[*json.SyntaxError](err)
	if _, shape := errors.AsType[*json.UnmarshalTypeError](err); syntax || shape || unusable {
		return fmt.Errorf("reading Consul's answer: %w", err)
	}
	status, ok := errors.AsType[api.StatusError](err)
	if !ok {
		return fmt.Errorf("%w: %w%s", ErrUnavailable, err, hint(err))
	}
	reason := sanitize(status.Body)
	switch {
	case status.Code < http.StatusBadRequest:
		return fmt.Errorf("%w: status %d: it sends elsewhere, and is not followed there: name the address of Consul itself", ErrUnavailable, status.Code)
	case status.Code == http.StatusForbidden, status.Code == http.StatusUnauthorized:
		return denied(reason)
	case status.Code == http.StatusTooManyRequests:
		return fmt.Errorf("%w: status %d: %s", ErrThrottled, status.Code, reason)
	}
	if err := byReply(status.Code, reason); err != nil {
		return err
	}
	switch {
	case status.Code >= http.StatusInternalServerError:
		return fmt.Errorf("%w: status %d: %s", ErrUnavailable, status.Code, reason)
	case reason == "":
		return fmt.Errorf("asking Consul: status %d", status.Code)
	default:
		return fmt.Errorf("asking Consul: status %d: %s", status.Code, reason)
	}
}

// byReply says what an answer means of which the status does not tell, or returns
// nil. A Consul server that asks another one passes on its error as text, with
// status 500, and package api has no types for them.
func byReply(code int, reason string) error {
	says := func(s string) bool { return strings.Contains(reason, s) }
	switch {
	case says("HTTP request to an HTTPS server"):
		return fmt.Errorf("%w: TLS is spoken at this address: write https:// before it", ErrUnavailable)
	case says("rate limit exceeded"):
		return fmt.Errorf("%w: status %d: %s", ErrThrottled, code, reason)
	case says("Permission denied"), says("ACL not found"):
		return denied(reason)
	case says("boolean expression evaluator"):
		return fmt.Errorf("%w: %s", ErrFilter, reason)
	case says("No path to datacenter"):
		return fmt.Errorf("%w: %s: is it unreachable, or is --consul-datacenter wrong?", ErrUnavailable, reason)
	case says(`query parameter: "ns"`), says(`query parameter: "partition"`):
		return fmt.Errorf("asking Consul: %s: leave out --consul-namespace and --consul-partition", reason)
	default:
		return nil
	}
}

// hint says what to do about a failure that is no answer, where that is known.
func hint(err error) string {
	if _, is := errors.AsType[tls.RecordHeaderError](err); is {
		return ": no TLS is spoken at this address: write http:// before it, or name the port that speaks TLS (ports.https of Consul, 8501 as a rule)"
	}
	if _, is := errors.AsType[x509.UnknownAuthorityError](err); is {
		return ": name the authority of Consul's certificate (--consul-ca-file)"
	}
	if _, is := errors.AsType[x509.HostnameError](err); is {
		return ": say what Consul's certificate is for (--consul-tls-server-name)"
	}
	if errors.Is(err, errNotHTTP) {
		return ": no HTTP is spoken at this address: is it another port of Consul?"
	}
	return ""
}

func denied(reason string) *Denied {
	d := &Denied{Reason: reason}
	if m := missingPermission.FindStringSubmatch(reason); m != nil {
		d.Rule = m[1]
		if m[2] != "" {
			d.Rule += fmt.Sprintf(" on %q", m[2])
		}
	}
	return d
}

// sanitize makes one bounded line of what a server said.
func sanitize(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "..."
	}
	return s
}
