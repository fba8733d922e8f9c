package check

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pki/svid"
)

// connectTimeout bounds the connection to one server.
const connectTimeout = 3 * time.Second

// agentRuns asks the agent what it knows to be wrong.
func (r *run) agentRuns(context.Context) {
	if r.agentErr != nil {
		r.add("agent", Fault, r.agentErr.Error(), "start it (`systemctl start fairlead-agent`); `journalctl -u fairlead-agent` says why it stopped")
		return
	}
	for _, why := range r.agent.NotReady {
		r.add("agent", Fault, why, "what follows may say why; so does `journalctl -u fairlead-agent`")
	}
	for _, p := range r.agent.Problems {
		r.add("agent", Warning, p, "docs/troubleshooting.md has the message")
	}
	if len(r.agent.NotReady)+len(r.agent.Problems) == 0 {
		r.add("agent", OK, "runs, and Envoy serves", "")
	}
}

// identity looks at the host's certificate, or at the token that it will be had with.
func (r *run) identity(context.Context) {
	id, err := svid.OpenHostStore(r.StateDir).Load()
	now := r.Now()
	switch {
	case errors.Is(err, svid.ErrNoIdentity):
		r.token()
	case err != nil:
		r.add("identity", Unknown, err.Error(), "run this command as root, or as the agent's user; if the file is damaged, remove it and join again with a new token")
	case now.After(id.NotAfter()):
		r.add("identity", Fault, fmt.Sprintf("the certificate of %s ended at %s", id.ID, id.NotAfter().UTC().Format(time.RFC3339)),
			"connect the host to the control plane; if it was away for longer than it is let in for, join again with a new token (`fairlead token create`)")
	case now.Before(id.Leaf().NotBefore):
		r.add("identity", Fault, fmt.Sprintf("the certificate of %s begins at %s, later than this host's clock", id.ID, id.Leaf().NotBefore.UTC().Format(time.RFC3339)), "set the clock")
	default:
		life, left := id.NotAfter().Sub(id.Leaf().NotBefore), id.NotAfter().Sub(now)
		if left < life/3 {
			r.add("identity", Warning, fmt.Sprintf("the certificate of %s ends in %s and was not renewed at half of its life", id.ID, left.Truncate(time.Minute)), "connect the host to the control plane")
			return
		}
		r.add("identity", OK, fmt.Sprintf("%s, for another %s", id.ID, left.Truncate(time.Minute)), "")
	}
}

// token looks at the join token of a host that has not joined.
func (r *run) token() {
	switch {
	case r.TokenErr != nil:
		r.add("identity", Fault, "the host has not joined, and its join token cannot be read: "+r.TokenErr.Error(), "make one on the server: `fairlead token create`")
	case r.Token == "":
		r.add("identity", Fault, "the host has not joined, and has no join token", "make one on the server (`fairlead token create`), and name its file with --token-file")
	default:
		t, err := svid.ParseJoinToken(r.Token)
		if err != nil {
			r.add("identity", Fault, err.Error(), "copy it again, or make another one: `fairlead token create`")
			return
		}
		r.add("identity", Warning, "the host has not joined yet; its token is for "+t.Host, "start the agent")
	}
}

// serverList are the servers of the control plane, or none.
func (r *run) serverList() []string {
	if t, err := svid.ParseJoinToken(r.Token); err == nil && len(r.Servers) == 0 {
		return t.Servers
	}
	return r.Servers
}

// servers connects to each server of the control plane.
func (r *run) servers(ctx context.Context) {
	list := r.serverList()
	if r.agent.Server != "" {
		r.add("server", OK, "the agent is connected to "+r.agent.Server, "")
	}
	if r.agent.Server == "" && r.agent.Refusal != "" {
		r.add("server", Fault, r.agent.Refusal, "correct what it says: --address of the agent, or address and serviceAccount in the mesh; `fairlead proxy-status` on the server names this host")
	}
	if len(list) == 0 && r.agent.Server == "" {
		r.add("server", Unknown, "neither --server nor a join token names the control plane", "run this command with the agent's settings (--settings)")
	}
	for _, s := range list {
		if s == r.agent.Server {
			continue
		}
		switch took, err := handshake(ctx, s); {
		case err == nil:
			r.add("server", OK, fmt.Sprintf("%s answers, %s for TLS", s, took.Round(time.Millisecond)), "")
		case strings.Contains(err.Error(), "no such host"), strings.Contains(err.Error(), "lookup "):
			r.add("server", Fault, err.Error(), "name the server by an address, or mend the resolver: the agent must not depend on the mesh's own names")
		default:
			r.add("server", Fault, err.Error(), "check that the server runs, that --advertise is an address of it that this host can reach, and firewalls")
		}
	}
}

// handshake is how long TLS with a server takes. Who the server is the agent checks, not this: it sends
// nothing and trusts nothing that it hears.
func handshake(ctx context.Context, server string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	began := time.Now()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
	if err != nil {
		return 0, fmt.Errorf("connecting to the control plane: %w", err)
	}
	defer conn.Close()
	c := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // see above
	if err := c.HandshakeContext(ctx); err != nil {
		return 0, fmt.Errorf("%s does not speak the control plane's TLS: %w", server, err)
	}
	return time.Since(began), nil
}
