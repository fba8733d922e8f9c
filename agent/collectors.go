package agent

import (
	"context"
	"io"

	"github.com/fairlead/fairlead/agent/collectors"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/agent/relay"
)

// watchCollectors makes what finds collectors that do not take what Envoy reports.
func (a *Agent) watchCollectors(envoy *proxy.Process, r *relay.Relay) (*collectors.Watch, error) {
	return collectors.New(collectors.Config{
		Logger: a.c.Logger,
		Open: func(ctx context.Context, path string) (io.ReadCloser, error) {
			a.mu.Lock()
			admin := a.admin
			a.mu.Unlock()
			return admin.Open(ctx, path)
		},
		Configured: func() bool { return r.HasCluster(collectors.IsCollector) },
		Process:    func() (string, bool) { return envoy.Birth(), envoy.Status().Adopted },
	})
}
