package xds

import (
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/proxyconfig"
	"github.com/fairlead/fairlead/xds/stream"
)

// ownConfig is the ProxyConfig of one proxy, for its agent. It says who the workload is, so that
// nearly every proxy has another one. It stands beside the resources, which proxies share. The
// zero value is for a proxy that has not subscribed to it.
type ownConfig struct {
	in proxyconfig.Input
	// set has the one resource. It stays the same while the content does.
	set     *stream.Set
	version string
}

// ownConfigOf is the ProxyConfig of a workload, given the last one. Called with mu held.
func (c *conn) ownConfigOf(s *mesh.Snapshot, w *mesh.Workload, had ownConfig) (ownConfig, error) {
	if !c.asksOwn {
		return had, nil
	}
	in := proxyconfig.InputOf(s, w)
	if had.set != nil && in.Same(had.in) {
		return had, nil
	}
	body, version, err := in.Resource()
	if err != nil {
		return had, err
	}
	if had.set != nil && version == had.version {
		return ownConfig{in, had.set, version}, nil
	}
	r := stream.NewResource(bootstrap.ProxyConfigType, stream.Resource{Name: bootstrap.ProxyConfigName, Version: version, Body: body})
	return ownConfig{in, stream.NewSet([]*stream.Resource{r}), version}, nil
}

// applyOwnRequest makes the ProxyConfig of a peer that asks for it, before the request is
// answered. Peers that do not ask, such as an Envoy without an agent, cost nothing.
func (c *conn) applyOwnRequest(r *stream.Request) {
	if r.GetTypeUrl() != bootstrap.ProxyConfigType {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asksOwn {
		c.asksOwn = true
		c.refreshView()
	}
}
