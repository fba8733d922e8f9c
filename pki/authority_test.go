package pki_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/pki"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/durable/durabletest"
	"github.com/fairlead/fairlead/pki/profile"
)

// With these set the test binary is a server that kills itself at a step of its
// first start.
const (
	childDir   = "PKI_TEST_CHILD_DIR"
	childSteps = "PKI_TEST_CHILD_STEPS"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m)
}

func child(dir string) int {
	steps, err := strconv.Atoi(os.Getenv(childSteps))
	if err != nil {
		return 2
	}
	cfg := config(dir)
	cfg.FS = &durabletest.FS{Steps: steps, Die: func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			os.Exit(3)
		}
		select {}
	}}
	if _, err := pki.New(cfg, time.Now()); err != nil {
		return 4
	}
	return 0
}

func config(dir string) pki.Config {
	return pki.Config{
		Dir: dir, TrustDomain: spiffeid.RequireTrustDomainFromString("mesh.test"), Logger: slog.New(slog.DiscardHandler),
	}
}

func open(t *testing.T, cfg pki.Config) *pki.Authority {
	t.Helper()
	a, err := pki.New(cfg, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return a
}

func TestAuthoritySurvivesKillAtEveryStep(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for steps := 0; ; steps++ {
		dir := filepath.Join(t.TempDir(), "pki")
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), childDir+"="+dir, fmt.Sprintf("%s=%d", childSteps, steps))
		out, err := cmd.CombinedOutput()
		exit, isExit := errors.AsType[*exec.ExitError](err)
		if isExit {
			status, ok := exit.Sys().(syscall.WaitStatus)
			if !ok || status.Signal() != syscall.SIGKILL {
				t.Fatalf("step %d: %v\n%s", steps, err, out)
			}
			killed++
		} else if err != nil {
			t.Fatal(err)
		}
		before, berr := os.ReadFile(filepath.Join(dir, "current.pem"))
		a := open(t, config(dir))
		after, aerr := os.ReadFile(filepath.Join(dir, "current.pem"))
		if aerr != nil {
			t.Fatal(aerr)
		}
		if berr == nil && !bytes.Equal(before, after) {
			t.Fatalf("step %d: an authority that was there was replaced", steps)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if again := open(t, config(dir)); !bytes.Equal(again.BundlePEM(), a.BundlePEM()) {
			t.Fatalf("step %d: the next start has another authority", steps)
		}
		if !isExit {
			break
		}
	}
	if killed < 8 {
		t.Errorf("killed at %d steps: two files have more", killed)
	}
}

func TestAuthorityRefusesWhatIsNotWhole(t *testing.T) {
	t.Parallel()
	current := func(dir string) string { return filepath.Join(dir, "current.pem") }
	split := func(t *testing.T, dir, keep string) {
		t.Helper()
		data, err := os.ReadFile(current(dir))
		if err != nil {
			t.Fatal(err)
		}
		cert, key, ok := strings.Cut(string(data), "-----END CERTIFICATE-----\n")
		if !ok {
			t.Fatal("no certificate first")
		}
		text := cert + "-----END CERTIFICATE-----\n"
		if keep == "key" {
			text = key
		}
		write(t, current(dir), text)
	}
	for _, c := range []struct {
		name string
		harm func(t *testing.T, dir string)
		want string
	}{
		{"key_gone", func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Remove(current(dir)); err != nil {
				t.Fatal(err)
			}
		}, `is gone, but "bundle.pem" shows that it was in use: restore it from a backup`},
		{"only_key", func(t *testing.T, dir string) { t.Helper(); split(t, dir, "key") }, "has the key but not its certificate"},
		{"only_certificate", func(t *testing.T, dir string) { t.Helper(); split(t, dir, "cert") }, "has the certificate but not its key"},
		{"empty", func(t *testing.T, dir string) { t.Helper(); write(t, current(dir), "") }, "empty: restore"},
		{"readable_by_all", func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Chmod(current(dir), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "chmod 600"},
		{"exchanged", func(t *testing.T, dir string) {
			t.Helper()
			other := t.TempDir()
			open(t, config(other))
			data, err := os.ReadFile(current(other))
			if err != nil {
				t.Fatal(err)
			}
			write(t, current(dir), string(data))
		}, "holds another authority"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := open(t, config(dir)).Close(); err != nil {
				t.Fatal(err)
			}
			c.harm(t, dir)
			_, err := pki.New(config(dir), time.Now())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v: want one with %q", err, c.want)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAuthorityRefusesSecondServerAndOtherTrustDomain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := open(t, config(dir))
	if _, err := pki.New(config(dir), time.Now()); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("second server: %v, want ErrLocked", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	other := config(dir)
	other.TrustDomain = spiffeid.RequireTrustDomainFromString("other.test")
	if _, err := pki.New(other, time.Now()); err == nil || !strings.Contains(err.Error(), "other.test") {
		t.Errorf("other trust domain: %v", err)
	}
	if _, err := pki.New(config(dir), time.Now().Add(11*365*24*time.Hour)); !errors.Is(err, pki.ErrExpired) {
		t.Errorf("in eleven years: %v, want ErrExpired", err)
	}
	open(t, config(dir))
}

func TestSignBounds(t *testing.T) {
	t.Parallel()
	cfg := config(t.TempDir())
	cfg.DefaultTTL = 20 * time.Second
	a := open(t, cfg)
	now := time.Now()
	for _, c := range []struct {
		name      string
		ask, want time.Duration
		at        time.Time
	}{
		{"default", 0, 20 * time.Second, now},
		{"short", time.Second, profile.MinTTL, now},
		{"asked", 30 * time.Second, 30 * time.Second, now},
		{"long", 1000 * time.Hour, 24 * time.Hour, now},
		{"root_ends", 24 * time.Hour, time.Hour, a.Bundle()[0].NotAfter.Add(-time.Hour)},
	} {
		leaf := workload(t)
		leaf.TTL = c.ask
		chain, err := a.Sign(leaf, c.at)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := chain[0].NotAfter.Sub(c.at); got > c.want || got < c.want-time.Second {
			t.Errorf("%s: life %s, want %s", c.name, got, c.want)
		}
	}
	if _, err := a.Sign(workload(t), a.Bundle()[0].NotAfter); !errors.Is(err, pki.ErrExpired) {
		t.Errorf("with an ended root: %v", err)
	}
}

func TestSignRefuses(t *testing.T) {
	t.Parallel()
	a := open(t, config(t.TempDir()))
	for name, harm := range map[string]func(*profile.Leaf){
		"other_trust_domain": func(l *profile.Leaf) {
			l.Subject.ID = spiffeid.RequireFromString("spiffe://other.test/ns/shop/sa/web")
		},
		"other_pair_than_id":    func(l *profile.Leaf) { l.Subject.Pair.ServiceAccount = "db" },
		"host_by_pair":          func(l *profile.Leaf) { l.Subject.Kind = profile.Host },
		"control_plane_by_kind": func(l *profile.Leaf) { l.Subject.Kind = profile.ControlPlane },
		"control_plane_by_id": func(l *profile.Leaf) {
			l.Subject.ID = spiffeid.RequireFromString("spiffe://mesh.test/ns/istio-system/sa/fairlead")
			l.Subject.Pair = profile.Pair{Namespace: "istio-system", ServiceAccount: "fairlead"}
		},
		"reserved_path": func(l *profile.Leaf) { l.Subject.ID = spiffeid.RequireFromString("spiffe://mesh.test/fairlead/ca") },
		"no_binding":    func(l *profile.Leaf) { l.Subject.Binding = profile.Binding{} },
		"server_names":  func(l *profile.Leaf) { l.ServerNames = []string{"orders.shop"} },
		"no_key":        func(l *profile.Leaf) { l.PublicKey = nil },
	} {
		leaf := workload(t)
		harm(&leaf)
		if _, err := a.Sign(leaf, time.Now()); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	if _, err := a.Sign(workload(t), time.Now()); err != nil {
		t.Errorf("unharmed: %v", err)
	}
}

func workload(t *testing.T) profile.Leaf {
	t.Helper()
	pair, err := profile.ParsePair("shop/web")
	if err != nil {
		t.Fatal(err)
	}
	id, err := profile.WorkloadID(spiffeid.RequireTrustDomainFromString("mesh.test"), pair)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := profile.Subject{Kind: profile.Impersonated, ID: id, Pair: pair, Binding: profile.Binding{1}}
	return profile.Leaf{Subject: s, PublicKey: key.Public()}
}
