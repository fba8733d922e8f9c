package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// WriteFeed runs our control plane and writes its resources to a file.
func WriteFeed(ctx context.Context, cfg CellConfig, file string) (err error) {
	cfg.Subject = Ours
	c := &cell{cfg: cfg}
	if c.address, err = freePort(ctx); err != nil {
		return err
	}
	if err := c.beginOurs(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	return feed(ctx, FleetConfig{Address: c.address, Mesh: cfg.Mesh}, file)
}

// feed writes what one proxy of an older Envoy is sent to a file, each response
// behind its length: the resources that the peers serve.
func feed(ctx context.Context, cfg FleetConfig, file string) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("writing a feed: %w", err)
	}
	w := bufio.NewWriter(out)
	defer func() { err = errors.Join(err, w.Flush(), out.Close()) }()
	cfg.Size, cfg.Minor, cfg.PerConn = 1, firstVHDS-1, 1
	var mu sync.Mutex // guards w
	f, err := cfg.fleet(ctx, func(msg []byte) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = w.Write(protowire.AppendBytes(nil, msg)) // the error comes again from Flush
	})
	if err != nil {
		return err
	}
	f.Start(ctx)
	defer f.Close()
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = f.AwaitReady(within, 1, quiet)
	return err
}
