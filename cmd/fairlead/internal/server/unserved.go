package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

// unservedCheck is how often endpoints are looked for that clients call by mTLS and that take none: often
// enough that they are a condition soon after patience.
const unservedCheck = 5 * time.Second

// mostUnserved bounds how many are named: a rule for all services may declare mTLS before its hosts have
// agents.
const mostUnserved = 200

// Unserved is an endpoint that clients call by mTLS, and since when it takes none.
type Unserved struct {
	xds.Unserved
	Since time.Time `json:"since"`
}

// subject is the endpoint for people.
func (u *Unserved) subject() string {
	if u.Key.Kind == mesh.KindWorkloadEntry {
		return u.Key.Namespace + "/" + u.Key.Name
	}
	return fmt.Sprintf("%s %s/%s", u.Key.Kind, u.Key.Namespace, u.Key.Name)
}

// unservedKey is one of a kind of fault: another fault of the same endpoint is new.
type unservedKey struct {
	key     mesh.Key
	address string
	port    uint32
	proxy   bool
}

// unservedSince remembers since when each is so.
type unservedSince struct {
	mu   sync.Mutex // guards all following fields
	list map[unservedKey]time.Time
}

// note returns the endpoints with since when they are so, and forgets those that are well.
func (s *unservedSince) note(list []xds.Unserved, now time.Time) []Unserved {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[unservedKey]time.Time, len(list))
	out := make([]Unserved, 0, len(list))
	for _, u := range list {
		k := unservedKey{u.Key, u.Address, u.Port, u.Proxy != ""}
		since, known := s.list[k]
		if !known {
			since = now
		}
		next[k] = since
		out = append(out, Unserved{u, since})
	}
	s.list = next
	return out
}

// watchUnserved looks regularly, so that it is known since when an endpoint is so, although nobody asks.
func (s *Server) watchUnserved(ctx context.Context) error {
	tick := time.NewTicker(unservedCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.unserved.note(s.xds.Unserved(), time.Now())
		}
	}
}

// unservedNow are the endpoints that are so for long enough.
func (s *Server) unservedNow(p *Proxies, now time.Time) []Unserved {
	away := map[string]bool{}
	for i := range p.Proxies {
		if x := &p.Proxies[i]; !x.Connected && (x.Absent || x.AgentGone || now.Sub(x.Since) < s.presence.after) {
			away[x.Workload] = true
		}
	}
	elsewhere := elsewhereOf(s.entitled.List(), away, len(s.cfg.Advertise) > 1 || !s.presence.settled(now))
	return slices.DeleteFunc(s.unserved.note(s.xds.Unserved(), now), func(u Unserved) bool {
		return now.Sub(u.Since) < patience || u.Proxy == "" && elsewhere(&u)
	})
}

// elsewhereOf says of which endpoints without a connected proxy this server cannot know that nothing is
// there. A host that is on record and away is a matter of host-absent and agent-gone. A direct client
// takes mTLS without a stream. unknown is for all of them: hosts have the time to come back after the
// start of the server, and those of another server are never connected to this one.
func elsewhereOf(record []attest.Host, away map[string]bool, unknown bool) func(*Unserved) bool {
	direct := map[mesh.ServiceAccount]bool{}
	for i := range record {
		for _, p := range record[i].Pairs {
			if record[i].Direct {
				direct[mesh.ServiceAccount{Namespace: p.Namespace, Name: p.ServiceAccount}] = true
			}
		}
	}
	return func(u *Unserved) bool { return unknown || direct[u.Account] || away[u.subject()] }
}

// noInbound are endpoints that clients call by mTLS, and that do not take it.
func noInbound(p *Proxies, _ *Sources, _ time.Time) (out []Condition) {
	for i := range p.Unserved[:min(len(p.Unserved), mostUnserved)] {
		u := &p.Unserved[i]
		c := Condition{
			Subject: u.subject(), Proxy: u.Proxy, Host: u.Host,
			Text: fmt.Sprintf("clients call %s at %s port %d by mTLS (%s) and get 503: %s", u.subject(), u.Address, u.Port, u.Service, u.cause()),
		}
		c.Action = u.cure() + "; or, if it takes no mTLS: " + u.plaintext()
		out = append(out, c)
	}
	if more := len(p.Unserved) - len(out); more > 0 {
		out = append(out, Condition{
			Subject: "mesh", Text: fmt.Sprintf("clients call %s more by mTLS that take none and get 503", amount(more, "endpoint")),
			Action: "repair those that are listed first; the others follow", Others: more,
		})
	}
	return out
}

// cause says what is missing at the address.
func (u *Unserved) cause() string {
	switch {
	case u.Proxy == "":
		return "no proxy is connected at that address, although the labels say security.istio.io/tlsMode=istio"
	case u.Inbound == view.InboundPlaintext:
		return fmt.Sprintf("its proxy %s has a listener there that takes no mTLS", u.Proxy)
	case u.Listens:
		return fmt.Sprintf("its proxy %s on host %s has inbound listeners, but none at that port and address", u.Proxy, u.Host)
	default:
		return fmt.Sprintf("its proxy %s on host %s has no inbound listener: its agent runs without --capture, and no Sidecar with ingress selects the workload", u.Proxy, u.Host)
	}
}

// argument is a name as a part of a command that a person copies: a placeholder stands for one that is not of plain
// letters, because a tenant's manifest may have any text there, and a shell would run it.
func argument(name, placeholder string) string {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	}) {
		return placeholder
	}
	return name
}

// cure says how the endpoint takes mTLS.
func (u *Unserved) cure() string {
	switch {
	case u.Proxy == "":
		return fmt.Sprintf("start an agent on that host (`fairlead token create --host NAME --workload %s/%s`); if its host uses another server, name that in --advertise, too", argument(u.Account.Namespace, "NAMESPACE"), argument(u.Account.Name, "ACCOUNT"))
	case u.Inbound == view.InboundPlaintext:
		return "remove the PeerAuthentication with mode DISABLE for that port, or the DestinationRule with ISTIO_MUTUAL"
	default:
		return fmt.Sprintf("on host %s start the agent with --capture and run `fairlead capture apply` (docs/capture.md), or write a Sidecar with an ingress listener for port %d", u.Host, u.Port)
	}
}

// plaintext says how clients are told to call it in plaintext.
func (u *Unserved) plaintext() string {
	if u.Instance {
		return "take tls=istio out of the rule of --consul-service, or fairlead-tls=istio out of its registration"
	}
	return "label it security.istio.io/tlsMode: disabled, at " + u.Origin
}
