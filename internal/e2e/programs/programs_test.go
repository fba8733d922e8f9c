package programs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// call is what a program on web does, and what it prints if that works.
type call struct {
	name string
	argv []string
	want string
	// cluster is where the log of the far end says that a TCP connection went.
	cluster string
}

// calls are those of unmodified programs, by name, and by the addresses that the name has in both families.
func (h *hosts) calls() []call {
	h.t.Helper()
	cli := tool(h.t, "redis-7.0.15", "redis-cli")
	const caller = `"caller":"spiffe://cluster.local/ns/lab/sa/web"`
	out := []call{
		{name: "curl", argv: []string{"curl", "-sSf", "http://api.lab/"}, want: caller},
		{name: "curl_IPv4", argv: []string{"curl", "-4sSf", "http://api.lab/"}, want: caller},
		{name: "curl_IPv6", argv: []string{"curl", "-6sSf", "http://api.lab/"}, want: caller},
		{name: "gRPC", argv: []string{"curl", "-sSf", "http://127.0.0.1:7000/"}, want: `"name":"api-grpc",` + caller},
		{name: "redis", argv: []string{cli, "-h", "cache.lab", "PING"}, want: "PONG", cluster: "inbound|6379||"},
		{name: "SMTP", argv: []string{"curl", "-sS", "--request", "HELP", "smtp://mail.lab/"}, want: "214 this is mail.lab", cluster: "inbound|2525||"},
	}
	for family, database := range map[string]string{"IPv4": "ahostsv4", "IPv6": "ahostsv6"} {
		for host, cluster := range map[string]string{"cache.lab": "inbound|6379||", "mail.lab": "inbound|2525||"} {
			text, err := h.web.Run(hosttest.AppUser, "getent", database, host)
			at, _, _ := strings.Cut(text, " ")
			if err != nil || at == "" {
				h.t.Fatalf("%s of %s: %q, %v", family, host, text, err)
			}
			if host == "cache.lab" {
				out = append(out, call{name: "redis_" + family, argv: []string{cli, "-h", at, "INCR", "n"}, want: "\n", cluster: cluster})
				continue
			}
			if family == "IPv6" {
				at = "[" + at + "]"
			}
			out = append(out, call{name: "SMTP_" + family, argv: []string{"curl", "-sS", "--request", "HELP", "smtp://" + at + "/"}, want: "214 this is mail.lab", cluster: cluster})
		}
	}
	return out
}

// Times that a call may take. An answer takes some milliseconds; a virtual address of nobody does not answer.
const (
	slow = "5"
	soon = "2"
)

// do makes a call as a user of web.
func (h *hosts) do(uid int, within string, c call) error {
	argv := append([]string{"timeout", within}, c.argv...)
	out, err := h.web.Run(uid, argv...)
	if err == nil && !strings.Contains(out, c.want) {
		err = fmt.Errorf("%s: %q, want %q", c.name, out, c.want)
	}
	return err
}

// await waits until all calls are answered, or none. They are made at once.
func (h *hosts) await(calls []call, answered bool) {
	h.t.Helper()
	pending := calls
	envoytest.Eventually(h.t, envoytest.Patience, func() error {
		errs := make([]error, len(pending))
		var wait sync.WaitGroup
		for i, c := range pending {
			wait.Go(func() {
				if err := h.do(hosttest.AppUser, slow, c); answered {
					errs[i] = err
				} else if err == nil {
					errs[i] = fmt.Errorf("%s is answered", c.name)
				}
			})
		}
		wait.Wait()
		var next []call
		for i, err := range errs {
			if err != nil {
				next = append(next, pending[i])
			}
		}
		pending = next
		return errors.Join(errs...)
	})
}

// undeclared makes the calls as a user who is not declared, and none may be answered.
func (h *hosts) undeclared(calls []call) {
	h.t.Helper()
	var wait sync.WaitGroup
	for _, c := range calls {
		if c.name == "gRPC" { // its program is a declared user's
			continue
		}
		wait.Go(func() {
			if err := h.do(hosttest.OtherUser, soon, c); err == nil {
				h.t.Errorf("%s of a user who is not declared is answered", c.name)
			}
		})
	}
	wait.Wait()
}

// logged waits until the log of the far end says of each TCP service that web called it, and of nobody else.
func (h *hosts) logged(calls []call) {
	h.t.Helper()
	envoytest.Eventually(h.t, envoytest.Patience, func() error {
		text, err := os.ReadFile(h.accessLog)
		for _, c := range calls {
			if err == nil && c.cluster != "" && !strings.Contains(string(text), "spiffe://cluster.local/ns/lab/sa/web to "+c.cluster) {
				err = fmt.Errorf("the log of data does not say that web calls %s:\n%s", c.cluster, text)
			}
		}
		return err
	})
}

// TestUnmodifiedPrograms: curl, a gRPC client, Debian's Redis and an SMTP client call by name and by
// address, IPv4 and IPv6, on three hosts, by mTLS. The far end knows who calls, a policy holds for all
// of them, and users who are not declared reach nothing.
func TestUnmodifiedPrograms(t *testing.T) {
	t.Parallel()
	h := start(t, (*hosttest.LAN).Host)
	calls := h.calls()
	h.await(calls, true)
	h.undeclared(calls)
	h.Write("policy.yaml", fmt.Sprintf(allow, "nobody"))
	h.await(calls, false)
	h.Write("policy.yaml", fmt.Sprintf(allow, "web"))
	h.await(calls, true)
	h.logged(calls)
	// A name of nobody's mesh comes from the network.
	if out, err := h.web.Run(hosttest.AppUser, "getent", "ahostsv4", "outside.example"); err != nil || !strings.Contains(out, h.Control.IP4()) {
		t.Errorf("outside.example: %q, %v", out, err)
	}
}
