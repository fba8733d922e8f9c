package server

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/gatewaynames"
	"github.com/fairlead/fairlead/xds/view"
)

// staleNameFor is how long a name of a gateway may not be confirmed until that is a condition: its last
// addresses stay in force, and a nameserver may be away for a moment.
const staleNameFor = time.Minute

// Networks are how the gateways of MeshNetworks stand.
type Networks struct {
	// WithoutGateway are the networks of which no gateway can be used.
	WithoutGateway []view.NetworkWithoutGateway `json:"without_gateway,omitempty"`
	// Names are those of gateways that are looked up.
	Names []gatewaynames.Status `json:"names,omitempty"`
}

// newNames makes what looks up names of gateways.
func (s *Server) newNames(context.Context) error {
	var err error
	s.names, err = gatewaynames.New(gatewaynames.Config{
		Logger: s.cfg.Logger, Path: filepath.Join(s.cfg.StateDir, "gateway-addresses.json"), Lookup: s.cfg.lookupGateway,
	})
	return err
}

func (s *Server) networkStatus() Networks {
	out := Networks{Names: s.names.Status()}
	if snap := s.registry.Snapshot(); snap != nil {
		out.WithoutGateway = view.NetworksWithoutGateways(snap)
	}
	return out
}

func networkGateways(_ *Proxies, s *Sources, now time.Time) (out []Condition) {
	for _, n := range s.Networks.WithoutGateway {
		out = append(out, Condition{
			Subject: "network " + n.Network,
			Text:    "network " + n.Network + " has no gateway, so that proxies of other networks connect to the addresses of its workloads: " + strings.Join(n.Why, "; "),
			Action:  "correct the gateways in the file of --mesh-networks, or the services that they name; `fairlead analyze --mesh-networks` checks them",
		})
	}
	for _, st := range s.Networks.Names {
		text := "the name " + st.Name + " of a gateway of networks cannot be looked up, so that the gateway is left out: " + st.Err
		switch failed := now.Sub(st.Since); {
		case st.Err == "", len(st.Addresses) > 0 && failed < staleNameFor:
			continue
		case len(st.Addresses) > 0:
			text = fmt.Sprintf("the name %s of a gateway of networks was not looked up for %s; its last addresses stay in force: %s", st.Name, failed.Truncate(time.Second), st.Err)
		}
		out = append(out, Condition{
			Subject: "gateway " + st.Name, Text: text,
			Action: "make the name resolvable on the server's host (`getent ahosts " + st.Name + "`); the server tries again by itself",
		})
	}
	return out
}
