package agent

import (
	"context"

	"github.com/fairlead/fairlead/agent/logrotate"
	"github.com/fairlead/fairlead/agent/proxy"
)

// defaultAccessLogMaxSize is the size in bytes at which an access log is rotated.
const defaultAccessLogMaxSize = 100 << 20

// rotator makes what bounds the logs that an Envoy writes to files.
func (a *Agent) rotator(envoy *proxy.Process) (*logrotate.Rotator, error) {
	return logrotate.New(logrotate.Config{
		Logger: a.c.Logger, MaxSize: a.c.AccessLogMaxSize, Files: a.c.AccessLogFiles, Output: a.c.EnvoyLog, CopyTo: a.c.EnvoyOutput,
		Private: []string{a.c.StateDir, a.c.RunDir},
		Process: func() (int, string) { return envoy.ProcID(), envoy.Birth() },
		Reopen: func(ctx context.Context) error {
			a.mu.Lock()
			admin := a.admin
			a.mu.Unlock()
			_, err := admin.Post(ctx, "/reopen_logs")
			return err
		},
	})
}
