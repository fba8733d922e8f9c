package client_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/consul/client"
)

// A key for Consul that every user can read is refused; a token that they can
// read is warned of.
func TestSecretsThatOthersCanRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var log bytes.Buffer
	cfg := client.Config{
		Address: "https://127.0.0.1:8501", Logger: slog.New(slog.NewTextHandler(&log, nil)),
		CertFile: file("cert", "x", 0o644), KeyFile: file("key", "x", 0o644),
	}
	if _, err := client.New(cfg); !errors.Is(err, durable.ErrExposed) {
		t.Errorf("a key of mode 0644: %v", err)
	}
	cfg = client.Config{Address: "http://127.0.0.1:8500", Logger: cfg.Logger, TokenFile: file("token", "hush-hush", 0o644)}
	c, err := client.New(cfg)
	if err != nil {
		t.Fatalf("a token of mode 0644: %v", err)
	}
	_ = c
	if s := log.String(); !strings.Contains(s, cfg.TokenFile) || strings.Contains(s, "hush-hush") {
		t.Errorf("the log: %s", s)
	}
}
