package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
	"github.com/fairlead/fairlead/xds"
)

// agentPort is the port of an agent's metrics where the agent does not say another one: Istio's
// port for the merged metrics of a sidecar.
const agentPort = 15020

// sdEvery is how often the targets are listed anew at most: the list asks every stream.
const sdEvery = 5 * time.Second

// maxLabel limits a label's value in bytes: a host chooses some of them.
const maxLabel = 256

// Labels of targets. Prometheus drops those that begin with __ after relabeling.
const (
	labelHost           = "__meta_fairlead_host"
	labelProxy          = "__meta_fairlead_proxy"
	labelNamespace      = "__meta_fairlead_namespace"
	labelWorkload       = "__meta_fairlead_workload"
	labelServiceAccount = "__meta_fairlead_service_account"
	labelApp            = "__meta_fairlead_app"
	labelVersion        = "__meta_fairlead_version"
	labelNetwork        = "__meta_fairlead_network"
	labelLocality       = "__meta_fairlead_locality"
	labelEnvoyVersion   = "__meta_fairlead_envoy_version"
	labelAgentVersion   = "__meta_fairlead_agent_version"
	labelConnected      = "__meta_fairlead_connected"
)

// targetGroup is one target with its labels, as Prometheus reads it in http_sd and file_sd.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// targetsOf lists the agents of proxies, sorted by address: those with a stream, and those
// that left lately, so that Prometheus shows them as down. Two proxies of one address, the
// first of which is connected, are one target. Envoys without an agent have no metrics there.
func targetsOf(proxies []xds.ProxyStatus, snap *mesh.Snapshot) []targetGroup {
	type place struct {
		network string
		address netip.Addr
	}
	at := func(p *xds.ProxyStatus) (place, bool) {
		a, err := netip.ParseAddr(p.Address)
		return place{p.Network, a.Unmap()}, err == nil && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" && p.Host != "" && p.AgentVersion != ""
	}
	by := map[place]*xds.ProxyStatus{}
	for i := range proxies {
		if where, ok := at(&proxies[i]); ok && (by[where] == nil || !by[where].Connected && (proxies[i].Connected || proxies[i].Left.After(by[where].Left))) {
			by[where] = &proxies[i]
		}
	}
	places := make([]place, 0, len(by))
	for where := range by {
		places = append(places, where)
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.network, b.network)) })
	out := make([]targetGroup, 0, len(places))
	for _, where := range places {
		out = append(out, targetGroup{
			// The address is the workload's, which the host has proven or claimed; only the port is
			// what its agent says.
			Targets: []string{net.JoinHostPort(where.address.String(), strconv.Itoa(int(cmp.Or(by[where].MetricsPort, agentPort))))},
			Labels:  labelsOf(by[where], workloadOf(snap, by[where].Workload)),
		})
	}
	return out
}

// labelsOf are the labels of a proxy. Its workload may be nil. Empty values are left out, as
// an absent label is empty to Prometheus.
func labelsOf(p *xds.ProxyStatus, w *mesh.Workload) map[string]string {
	all := map[string]string{
		labelHost: p.Host, labelProxy: p.Name, labelNamespace: p.ServiceAccount.Namespace, labelServiceAccount: p.ServiceAccount.Name,
		labelNetwork: p.Network, labelEnvoyVersion: p.EnvoyVersion, labelAgentVersion: p.AgentVersion, labelConnected: strconv.FormatBool(p.Connected),
	}
	if w != nil {
		all[labelWorkload], all[labelApp], all[labelVersion] = w.Name, w.Labels[metakeys.App], w.Labels[metakeys.Version]
		if l := w.Locality; l != (mesh.Locality{}) {
			all[labelLocality] = l.Region + "/" + l.Zone + "/" + l.SubZone
		}
	}
	for name, value := range all {
		if all[name] = safetext.Sanitize(value, maxLabel); value == "" {
			delete(all, name)
		}
	}
	return all
}

// targetList is the list of targets for Prometheus.
type targetList struct {
	list func() []targetGroup

	mu   sync.Mutex // guards all following fields, and that one list is made at a time
	made time.Time
	last []byte // as JSON
}

// targets are the targets as JSON, no older than sdEvery.
func (d *targetList) json(now time.Time) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil && now.Sub(d.made) < sdEvery && !now.Before(d.made) {
		return d.last, nil
	}
	b, err := json.MarshalIndent(d.list(), "", "  ")
	if err != nil {
		return nil, err
	}
	d.made, d.last = now, slices.Concat(b, []byte("\n"))
	return d.last, nil
}

func (s *Server) sdTargets() []targetGroup { return targetsOf(s.xds.Proxies(), s.registry.Snapshot()) }

// serveSD serves http_sd. Until the fleet had the time to come back after a start, it has an
// error for an answer: Prometheus then keeps the targets that it knows.
func (s *Server) serveSD(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	if !s.presence.settled(now) {
		http.Error(w, "the server has just started; hosts are still connecting (--absent-after)", http.StatusServiceUnavailable)
		return
	}
	b, err := s.targets.json(now)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

// writeFileSD keeps the file of targets until ctx ends.
func (s *Server) writeFileSD(ctx context.Context) error {
	if s.cfg.FileSD == "" {
		return nil
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var written []byte
	failed := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !s.presence.settled(time.Now()) {
			continue
		}
		b, err := s.targets.json(time.Now())
		if err == nil && !bytes.Equal(b, written) {
			// Readers are in the group; a file of all addresses is not for everybody.
			if err = durable.WriteFile(durable.OS{}, s.cfg.FileSD, b, 0o640); err == nil {
				written = b
			}
		}
		switch {
		case err != nil && !failed:
			s.cfg.Logger.ErrorContext(ctx, "writing the targets for Prometheus failed; the file is not current (--file-sd)", "path", s.cfg.FileSD, "err", err)
		case err == nil && failed:
			s.cfg.Logger.InfoContext(ctx, "writing the targets for Prometheus works again", "path", s.cfg.FileSD)
		}
		failed = err != nil
	}
}
