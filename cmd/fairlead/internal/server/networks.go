package server

import (
	"strings"
	"time"
)

func networkGateways(_ *Proxies, s *Sources, _ time.Time) (out []Condition) {
	for _, n := range s.Networks {
		out = append(out, Condition{
			Subject: "network " + n.Network,
			Text:    "network " + n.Network + " has no gateway, so that proxies of other networks connect to the addresses of its workloads: " + strings.Join(n.Why, "; "),
			Action:  "correct the gateways in the file of --mesh-networks, or the services that they name; `fairlead analyze --mesh-networks` checks them",
		})
	}
	return out
}
