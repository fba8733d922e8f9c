package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTokenFileThatKeepsChanging: a process that rewrites the token file again and again
// causes a few errors or renewals, and then one a minute. The last text is used.
func TestTokenFileThatKeepsChanging(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &syncBuffer{}
		text := ""
		logger := slog.New(slog.NewTextHandler(log, nil))
		a := &Agent{c: Config{ReadToken: func() (string, error) { return text, nil }}, log: logger}
		i := &identities{a: a, e: &enrolled{}, log: logger}
		const polls = 300 // ten minutes
		for n := range polls {
			text = fmt.Sprint("token ", n)
			if n%3 == 0 {
				text = "" // it was taken away meanwhile
			}
			i.checkToken(t.Context())
			<-time.After(tokenPollInterval)
		}
		took := polls * tokenPollInterval
		most := tokenBurst + int(took/tokenRefillTime)
		if n := strings.Count(string(log.bytes()), "level=ERROR"); n < tokenBurst || n > most {
			t.Errorf("%d errors in %s, want %d at most", n, took, most)
		}
		if n := strings.Count(string(log.bytes()), "level=WARN"); n != 1 {
			t.Errorf("%d warnings", n)
		}
		for range 2 * tokenRefillTime / tokenPollInterval {
			i.checkToken(t.Context())
			<-time.After(tokenPollInterval)
		}
		if i.e.joinToken.text != text {
			t.Errorf("the token that stays is not looked at: %q", i.e.joinToken.text)
		}
		<-time.After(time.Hour)
		before := strings.Count(string(log.bytes()), "level=ERROR")
		text = "a quiet one"
		i.checkToken(t.Context())
		if strings.Count(string(log.bytes()), "level=ERROR") != before+1 {
			t.Error("after a quiet hour a new token has to wait")
		}
	})
}
