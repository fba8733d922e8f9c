package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Listen opens a TCP port. If another process has it, the error says how to find that one.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		if _, port, splitErr := net.SplitHostPort(address); splitErr == nil {
			err = fmt.Errorf("%w: another process has the port, which `ss -ltnp sport = :%s` names (as root): stop it, or choose another address", err, port)
		}
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // the callers say what for
	}
	return l, nil
}
