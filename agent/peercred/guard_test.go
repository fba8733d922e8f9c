package peercred

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
)

// TestRejectedCallsDoNotFloodTheLog has a client that sends any number of requests.
func TestRejectedCallsDoNotFloodTheLog(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("A", minToken)
	var log bytes.Buffer
	passed := 0
	g, err := NewGuard(GuardConfig{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Socket: "s", Header: "x-token", Token: token, Passed: func() { passed++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	for i := range 1000 {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-token", strings.Repeat("B", minToken)))
		if err := g.check(ctx, now.Add(time.Duration(i)*time.Millisecond), "m"); err == nil {
			t.Fatal("a wrong token was taken")
		}
	}
	if err := g.check(t.Context(), now.Add(logInterval), "m"); err == nil {
		t.Error("a call without a token was taken")
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "count=1000") || g.Refused() != 1001 || passed != 0 {
		t.Errorf("%d lines for %d refusals, %d passed: %s", n, g.Refused(), passed, log.String())
	}
	if strings.Contains(log.String(), token) {
		t.Error("the token is in the log")
	}
	if err := g.check(metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-token", token)), now, "m"); err != nil || passed != 1 {
		t.Errorf("the token was refused: %v", err)
	}
}

func TestShortTokenIsRejected(t *testing.T) {
	t.Parallel()
	if _, err := NewGuard(GuardConfig{Logger: slog.New(slog.DiscardHandler), Header: "x", Token: "short"}); err == nil {
		t.Error("a token that can be guessed was taken")
	}
}
