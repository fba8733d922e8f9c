package admin

import (
	"strings"
	"testing"
)

// TestPortInUse: who starts a second process is told how to find the first.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	first, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	address := first.Addr().String()
	if second, err := Listen(t.Context(), address); err == nil || second != nil || !strings.Contains(err.Error(), "this process itself listens there") {
		t.Errorf("in use: %v", err)
	}
	if _, err := Listen(t.Context(), "127.0.0.1:http-or-what"); err == nil || strings.Contains(err.Error(), "listens there") {
		t.Errorf("no such port: %v", err)
	}
}
