package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/fairlead/fairlead/xds/stream"
)

func absentHosts(p *Proxies, _ *Sources, now time.Time) (out []Condition) {
	for _, a := range p.Absent {
		text := fmt.Sprintf("host %s left %s ago and has not come back", a.Name, lasting(now, a.Since))
		if a.Never {
			text = fmt.Sprintf("host %s has not connected since the server started to let hosts in, %s ago", a.Name, lasting(now, a.Since))
		}
		var served []string
		for _, w := range a.Workloads {
			served = append(served, w.String())
		}
		if len(served) > 0 {
			text += "; it serves " + names(served, 3)
		}
		out = append(out, Condition{
			Subject: a.Name, Host: a.Name, Text: text,
			Action: "on the host: `systemctl status fairlead-agent`; if the host is gone for good: `fairlead host remove " + a.Name + "`",
		})
	}
	return out
}

func hostFaults(p *Proxies, _ *Sources, _ time.Time) (out []Condition) {
	for _, h := range p.HostFaults {
		out = append(out, Condition{
			Subject: h.Name, Host: h.Name, Text: "host " + h.Name + ": " + h.Fault,
			Action: "see `fairlead host list`; `fairlead token create --host " + h.Name + " --replace …` gives the host a new identity",
		})
	}
	return out
}

func goneAgents(p *Proxies, _ *Sources, now time.Time) (out []Condition) {
	for i := range p.Proxies {
		if x := &p.Proxies[i]; x.AgentGone {
			out = append(out, Condition{
				Subject: x.Name, Proxy: x.Name, Host: x.Host,
				Text:   fmt.Sprintf("the agent of %s left host %s %s ago; its workload %s is %s", x.Name, x.Host, lasting(now, x.Since), x.Workload, x.Health),
				Action: "start the agent again on the host, or remove the workload from the mesh",
			})
		}
	}
	return out
}

func unhealthy(p *Proxies, _ *Sources, _ time.Time) (out []Condition) {
	for i := range p.Proxies {
		x := &p.Proxies[i]
		if !x.Connected || x.Health != "unhealthy" || x.Withdrawn {
			continue // who is not connected is absent or gone
		}
		out = append(out, Condition{
			Subject: x.Name, Proxy: x.Name, Host: x.Host,
			Text:   fmt.Sprintf("%s is unhealthy and gets no traffic: %s", x.Name, dashed(x.HealthReason)),
			Action: "repair what the reason names: the application, its check in Consul, or Envoy (envoy.log in the agent's run directory)",
		})
	}
	return out
}

// hostProblems are what agents say is wrong with their hosts, where the health of the workload does not
// say it.
func hostProblems(p *Proxies, _ *Sources, _ time.Time) (out []Condition) {
	for i := range p.Proxies {
		x := &p.Proxies[i]
		if !x.Connected || x.Credentials == nil {
			continue
		}
		for _, text := range x.Credentials.Problems {
			const enough = 40 // of the same words: the reason of the health may be cut off
			if x.Health == "unhealthy" && strings.Contains(x.HealthReason, text[:min(len(text), enough)]) {
				continue
			}
			out = append(out, Condition{
				Subject: x.Name, Proxy: x.Name, Host: x.Host, Text: fmt.Sprintf("the agent of %s reports: %s", x.Name, text),
				Action: "do what it says on host " + x.Host + "; `fairlead agent check` there lists what else is wrong. This ends by itself when it is repaired",
			})
		}
	}
	return out
}

func rejected(p *Proxies, _ *Sources, _ time.Time) (out []Condition) {
	for i := range p.Proxies {
		x := &p.Proxies[i]
		n, example := 0, ""
		for _, t := range x.Types {
			n += len(t.Rejected) + t.RejectedMore
			for _, r := range t.Rejected {
				if example == "" {
					example = fmt.Sprintf("%s %s: %s", t.Type, r.Name, r.Reason)
				}
			}
		}
		if !x.Connected || n == 0 {
			continue
		}
		action := "correct the object that it was made from; `fairlead proxy-config all " + x.Name + "` lists each with its line of YAML"
		const again = "; the host then tries again by itself"
		switch stream.HostFaultOf(example) {
		case stream.NoHostFault:
		case stream.PortInUse:
			action = "on host " + x.Host + " `ss -ltnp` (as root) names the process that has the port: stop it, or give the object another port" + again
		case stream.NoAddress:
			action = "give host " + x.Host + " the address, or the object another one" + again
		case stream.NotPermitted:
			action = "give the object a port of 1024 or above, or have the agent of host " + x.Host + " and its Envoy run with CAP_NET_BIND_SERVICE, as the systemd unit does" + again
		case stream.OtherBind:
			action = "on host " + x.Host + ", repair what keeps Envoy from the address and port, or give the object others" + again
		case stream.NoFile:
			action = "on host " + x.Host + ", make the directory of that file, writable for Envoy's user, or give the access log another path" + again
		}
		out = append(out, Condition{
			Subject: x.Name, Proxy: x.Name, Host: x.Host,
			Text: fmt.Sprintf("the Envoy of %s rejects %s, the first is %s", x.Name, amount(n, "resource"), example), Action: action,
		})
	}
	return out
}

// rejects reports whether the proxy rejects something.
func (x *Proxy) rejects() bool {
	for _, t := range x.Types {
		if len(t.Rejected)+t.RejectedMore > 0 {
			return true
		}
	}
	return false
}

func staleProxies(p *Proxies, _ *Sources, _ time.Time) (out []Condition) {
	for i := range p.Proxies {
		if x := &p.Proxies[i]; x.Connected && x.Stale != "" {
			out = append(out, Condition{
				Subject: x.Name, Proxy: x.Name, Host: x.Host, Text: fmt.Sprintf("%s is stale: %s", x.Name, x.Stale),
				Action: "have a WorkloadEntry, or an instance of a catalog, with the address and service account of the host, or change the host: --address of its agent, " +
					"`fairlead token create --host " + x.Host + " --replace …`; if the host is gone for good, stop its agent and run `fairlead host remove " + x.Host + "`",
			})
		}
	}
	return out
}

func notSynced(p *Proxies, _ *Sources, now time.Time) (out []Condition) {
	for i := range p.Proxies {
		x := &p.Proxies[i]
		if !x.Connected || x.Synced || x.Stale != "" || x.rejects() || now.Sub(x.Behind) < patience {
			continue
		}
		text := fmt.Sprintf("%s is not synced for %s: ", x.Name, lasting(now, x.Behind))
		why := "it has not answered all of its configuration"
		if !x.asks("listener") { // what it has asked for is synced
			text = fmt.Sprintf("%s serves nothing for %s: ", x.Name, lasting(now, x.Behind))
			why = "it has not asked for listeners yet; its Envoy starts, or waits for a certificate of one of its clusters"
		} else if pending := x.pending(); len(pending) > 0 {
			why = "it has not answered " + strings.Join(pending, ", ")
		}
		out = append(out, Condition{
			Subject: x.Name, Proxy: x.Name, Host: x.Host, Text: text + why,
			Action: "look at envoy.log in the run directory of the agent on host " + x.Host + ", and whether its CPU is exhausted",
		})
	}
	return out
}

// unusableCredentials are those of hosts that their agents cannot use.
func unusableCredentials(p *Proxies, _ *Sources, _ time.Time) (out []Condition) {
	for i := range p.Proxies {
		x := &p.Proxies[i]
		if !x.Connected || x.Credentials == nil || x.Credentials.NotReady == 0 {
			continue
		}
		text := fmt.Sprintf("%s of %d of host %s cannot be used", amount(x.Credentials.NotReady, "credential"), x.Credentials.Total, x.Host)
		if len(x.Credentials.List) > 0 { // those that are not ready are first
			c := x.Credentials.List[0]
			text += fmt.Sprintf(", the first is %q, which is %s: %s", c.Name, c.State, c.Reason)
		}
		out = append(out, Condition{
			Subject: x.Name, Proxy: x.Name, Host: x.Host, Text: text,
			Action: "repair the file of that path on host " + x.Host + ", or the folder of that name below --credentials-dir of its agent; docs/credentials.md has its files. Servers that name it fail their handshakes, unless it was good before",
		})
	}
	return out
}

func (x *Proxy) asks(name string) bool {
	for _, t := range x.Types {
		if t.Type == name {
			return true
		}
	}
	return false
}

func (x *Proxy) pending() (out []string) {
	for _, t := range x.Types {
		if t.Pending {
			out = append(out, t.Type)
		}
	}
	return out
}

func claimConflicts(p *Proxies, _ *Sources, now time.Time) (out []Condition) {
	for _, c := range p.Conflicts {
		out = append(out, Condition{
			Subject: c.Host, Host: c.Host,
			Text: fmt.Sprintf("host %s claims workload %s/%s at %s, %s, last %s ago: %s", c.Host, c.Namespace, c.Workload, c.Address, times(c.Count), lasting(now, c.Last), c.Reason),
			Action: "see both hosts in `fairlead host list`; stop the wrong one or correct its --address, or prove the right one: annotate the WorkloadEntry with " +
				"fairlead.io/host, or make its token with --address",
		})
	}
	return out
}
