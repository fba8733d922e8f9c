package agent

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// hostConfig is what the control plane says of this host's proxy: its ProxyConfig. Immutable.
type hostConfig struct {
	// workload is who the workload is for Istio's metrics.
	workload bootstrap.Workload
}

// readProxyConfig reads an encoded ProxyConfig. An error says what this agent cannot use; then
// none of it is.
func readProxyConfig(body []byte) (*hostConfig, error) {
	pc := &meshconfig.ProxyConfig{}
	if err := proto.Unmarshal(body, pc); err != nil {
		return nil, fmt.Errorf("reading the ProxyConfig: %w", err)
	}
	who, err := bootstrap.WorkloadOf(pc.GetProxyMetadata())
	if err != nil {
		return nil, err
	}
	return &hostConfig{workload: who}, nil
}

// configure takes the ProxyConfig that the control plane sends. An error rejects it: the last one
// stays in force. It does not wait.
func (a *Agent) configure(body []byte) error {
	next, err := readProxyConfig(body)
	if err != nil {
		return err
	}
	a.config.Store(next)
	return nil
}

// restoreConfig takes the ProxyConfig that was accepted last, so that this start does not depend
// on the control plane.
func (a *Agent) restoreConfig(node *corev3.Node) {
	a.config.Store(nil) // another workload's
	body := relay.StoredProxyConfig(a.inState(acceptedFile), node)
	if body == nil {
		return
	}
	if err := a.configure(body); err != nil {
		a.log.Warn("stored ProxyConfig is unusable; starting with the defaults until the control plane sends another", "err", err)
	}
}

// Workload is who the control plane says that the workload is; false until it has said so once.
// What it said last counts while it is away, and after a restart.
func (a *Agent) Workload() (bootstrap.Workload, bool) {
	c := a.config.Load()
	if c == nil {
		return bootstrap.Workload{}, false
	}
	return c.workload, true
}
