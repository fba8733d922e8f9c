package admin

import (
	"context"
	"net"

	"github.com/fairlead/fairlead/internal/portholder"
)

// Listen opens a TCP port. If another process has it, the error names that one.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, portholder.Explain(err, address) //nolint:wrapcheck // the callers say what for
	}
	return l, nil
}
