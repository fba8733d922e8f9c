package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTokenThatChangesWithoutEnd: whoever writes the agent's token file again and again
// causes a few errors, or renewals, and then one a minute. The last text counts.
func TestTokenThatChangesWithoutEnd(t *testing.T) {
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
			i.watch(t.Context())
			<-time.After(tokenEvery)
		}
		took := polls * tokenEvery
		most := tokensAtOnce + int(took/tokensEvery)
		if n := strings.Count(string(log.bytes()), "level=ERROR"); n < tokensAtOnce || n > most {
			t.Errorf("%d errors in %s, want %d at most", n, took, most)
		}
		if n := strings.Count(string(log.bytes()), "level=WARN"); n != 1 {
			t.Errorf("%d warnings", n)
		}
		for range 2 * tokensEvery / tokenEvery {
			i.watch(t.Context())
			<-time.After(tokenEvery)
		}
		if i.e.offer.text != text {
			t.Errorf("the token that stays is not looked at: %q", i.e.offer.text)
		}
		<-time.After(time.Hour)
		before := strings.Count(string(log.bytes()), "level=ERROR")
		text = "a quiet one"
		i.watch(t.Context())
		if strings.Count(string(log.bytes()), "level=ERROR") != before+1 {
			t.Error("after a quiet hour a new token has to wait")
		}
	})
}
