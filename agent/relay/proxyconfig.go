package relay

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// The ProxyConfig of the host comes on the stream of Envoy's resources, and is stored with them.
// It is for the agent: no Envoy gets it, and no Envoy is waited for before it is acknowledged.

// receiveProxyConfig gives an update to the agent, and answers the server at once.
func (c *core) receiveProxyConfig(u *stream.Update) {
	var refused []stream.RejectedResource
	for _, r := range u.Changed {
		if err := c.configure(r); err != nil {
			refused = append(refused, stream.RejectedResource{Name: r.Name, Reason: err.Error()})
			continue
		}
		c.accepted[u.Type] = stream.NewSet([]*stream.Resource{r})
		c.dirty = true
	}
	// What an older control plane answers, that there is none, takes nothing away.
	if len(u.Removed) > 0 && c.r.c.Configure != nil {
		_ = c.r.c.Configure(nil) // nothing in it can be wrong
	}
	if len(refused) > 0 {
		u.Done(&stream.RejectError{Rejected: refused})
		return
	}
	u.Done(nil)
}

// configure gives a ProxyConfig to the agent. An error is why it cannot be used.
func (c *core) configure(r *stream.Resource) error {
	var err error
	if c.r.c.Configure != nil {
		err = c.r.c.Configure(r.Body)
	}
	if err == nil {
		c.refusedConfig = nil
		return nil
	}
	was := c.refusedConfig
	c.refusedConfig = &Rejection{Type: bootstrap.ProxyConfigType, Name: r.Name, Version: r.Version, Reason: err.Error()}
	if was == nil || *was != *c.refusedConfig { // every new stream sends it again
		c.log.Warn("the agent rejects its ProxyConfig; the last good one stays in force", "version", r.Version, "err", err)
	}
	return err
}

// StoredProxyConfig is the ProxyConfig, encoded, that a relay with this node accepted last, as
// its store has it, or that of any workload if node is nil; nil if it has none. stored reports whether there is a store that the relay can
// use at all. The relay itself reports an unusable one.
func StoredProxyConfig(storeFile string, node *corev3.Node) (body []byte, stored bool) {
	s, err := readStore(storeFile)
	if err != nil || node != nil && s.Who != who(node) {
		return nil, false
	}
	if r := s.resources[bootstrap.ProxyConfigType].Get(bootstrap.ProxyConfigName); r != nil {
		return r.Body, true
	}
	return nil, true
}
