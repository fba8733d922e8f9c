package pki_test

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki"
)

// A control plane opens its authority, and makes its own identity with it.
func Example() {
	dir, err := os.MkdirTemp("", "fairlead-pki-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Println(err)
		}
	}()
	logger := slog.New(slog.DiscardHandler)
	authority, err := pki.New(pki.Config{
		Dir: dir, TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), Logger: logger,
	}, time.Now())
	if err != nil {
		fmt.Println(err)
		return
	}
	front, err := pki.NewServerTLS(pki.ServerTLSConfig{Authority: authority, Logger: logger}, time.Now())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(authority.TrustDomain(), time.Until(front.NotAfter()).Round(time.Hour))
	if err := authority.Close(); err != nil {
		fmt.Println(err)
	}
	// Output: cluster.local 24h0m0s
}
