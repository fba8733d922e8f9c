package main

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestLogThatNobodyReads: a process goes on while nobody reads its log, as when the journal hangs. The
// reader that comes back finds a line of the usual form that says how many were lost.
func TestLogThatNobodyReads(t *testing.T) {
	t.Parallel()
	r, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &cobra.Command{}
	cmd.Flags().String("log-level", "info", "")
	cmd.Flags().String("log-format", "json", "")
	cmd.SetErr(to)
	log, _, err := newLogger(cmd)
	if err != nil {
		t.Fatal(err)
	}
	const lines = 5000 // a pipe has 64 KiB
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		for n := range lines {
			log.InfoContext(t.Context(), "something happened", "count", n)
		}
	}()
	select {
	case <-logged:
	case <-time.After(envoytest.Patience):
		t.Fatal("it waits for the reader")
	}
	s := bufio.NewScanner(r)
	for seen := 0; ; {
		log.InfoContext(t.Context(), "once more")
		if !s.Scan() {
			t.Fatal(s.Err())
		}
		var line struct {
			Msg, Level string
			Count      int
		}
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			t.Fatalf("%q: %v", s.Text(), err)
		}
		switch {
		case line.Msg == "something happened":
			seen++
		case line.Msg == "standard error was not read; log lines are lost" && line.Level == "WARN" && line.Count >= lines-seen:
			return
		default:
			t.Fatalf("after %d lines: %s", seen, s.Text())
		}
	}
}
