package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/safetext"
)

// resultFlags are the server to ask for the result of a change, and how long to wait.
type resultFlags struct {
	runDir string
	wait   time.Duration
}

// change is a change of manifests that was made.
type change struct {
	// root is the directory or prefix; is reports whether a root of a server is the same.
	root   string
	is     func(root string) bool
	places []changedPlace
	begin  time.Time // before anything was written
}

// changedPlace is a file or key that was changed.
type changedPlace struct {
	name string // for people
	path string // as origins have it, where a server calls the root that, too
}

// samePlace reports whether two paths are of one directory.
func samePlace(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// errReadsOthers: a server does not read what was changed, so it knows nothing of it.
var errReadsOthers = errors.New("the server on this machine does not read it")

// reportResult prints the result of a change at the proxies, if there is a server on this machine that reads it. If that
// does not say, the change is made and its result is unknown: [errUnknown].
func reportResult(cmd *cobra.Command, f resultFlags, c change) error {
	socket := filepath.Join(f.runDir, "admin.sock")
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) || f.wait == 0 || len(c.places) == 0 {
		return nil // no server here: there is nobody to ask
	}
	client, w := admin.NewClient(socket), cmd.OutOrStdout()
	until := time.Now().Add(f.wait)
	ctx, cancel := context.WithDeadline(cmd.Context(), until)
	defer cancel()
	root, err := c.rootAt(ctx, client)
	if err != nil {
		_, werr := fmt.Fprintf(w, "the result at the proxies is unknown: %s\n", explain(err))
		if errors.Is(err, errReadsOthers) {
			return werr
		}
		return errors.Join(errUnknown, werr)
	}
	bad, unknown := false, false
	for _, p := range c.places {
		r, err := awaitRollout(cmd.Context(), client, root+strings.TrimPrefix(p.path, c.root), c.begin, until)
		if err != nil {
			_, _ = fmt.Fprintf(w, "%s: no result from the server within %s: %v\n", p.name, f.wait, err)
			bad, unknown = len(r.Rejected) > 0 || bad, true
		} else {
			bad = printRollout(w, p.name, r) || bad
			// Nobody waits for proxies that do not answer, but it takes one that does to say how it went.
			unknown = unknown || r.Touched > 0 && r.Accepted+len(r.Rejected)+r.RejectedMore == 0
		}
		printUnanswered(w, r)
	}
	switch {
	case bad:
		return errInvalid
	case unknown:
		_, err := fmt.Fprintln(w, "it is written; `fairlead proxy-status` says what became of it")
		return errors.Join(errUnknown, err)
	}
	return nil
}

// rootAt asks a server for its name of the changed directory or prefix.
func (c *change) rootAt(ctx context.Context, client *admin.Client) (string, error) {
	var sources struct {
		Files []struct{ Roots []struct{ Path string } }
	}
	if err := client.Do(ctx, http.MethodGet, "/v1/sources", nil, &sources); err != nil {
		return "", err
	}
	for _, src := range sources.Files {
		for _, root := range src.Roots {
			if c.is(root.Path) {
				return root.Path, nil
			}
		}
	}
	return "", fmt.Errorf("%w: %q", errReadsOthers, c.root)
}

// lastAsk is how long the server may take for its answer when the time to wait is over.
const lastAsk = 2 * time.Second

// awaitRollout waits for the result of a file or key that was written after begin. It asks at least
// once: the result of one file may be there when another one took all of the time.
func awaitRollout(ctx context.Context, client *admin.Client, path string, begin, until time.Time) (server.Rollout, error) {
	at := (&url.URL{Path: "/v1/rollout/" + strings.TrimPrefix(path, "/")}).EscapedPath()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		left := time.Until(until)
		asking, cancel := context.WithDeadline(ctx, until.Add(lastAsk)) // for all files together
		var r server.Rollout
		err := client.Do(asking, http.MethodGet, at, nil, &r)
		cancel()
		switch {
		case err != nil:
			r = server.Rollout{}
		case time.Since(begin).Seconds() < r.Age:
			r, err = server.Rollout{}, errors.New("it knows of an earlier change only")
		case r.Done:
			return r, nil
		default:
			err = fmt.Errorf("%d of %d proxies have not answered", r.Waiting, r.Touched)
		}
		if left <= 0 || ctx.Err() != nil {
			return r, err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// printUnanswered names proxies that have not answered.
func printUnanswered(w io.Writer, r server.Rollout) {
	const few = 3
	for _, u := range r.Unanswered[:min(len(r.Unanswered), few)] {
		note := ""
		if u.Silent {
			note = ", since before the change: nobody waits for it"
		}
		_, _ = fmt.Fprintf(w, "%s on host %s has not answered for %s%s\n", safetext.Sanitize(u.Proxy, 256), safetext.Sanitize(u.Host, 256), time.Duration(u.Seconds*float64(time.Second)).Round(time.Second), note)
	}
	if more := r.Waiting - few; len(r.Unanswered) > few && more > 0 {
		_, _ = fmt.Fprintf(w, "… and %d more: `fairlead proxy-status` lists each proxy\n", more)
	}
}

func printRollout(w io.Writer, name string, r server.Rollout) (rejected bool) {
	if r.Touched == 0 {
		_, _ = fmt.Fprintf(w, "%s changes nothing at any proxy\n", name)
		return false
	}
	_, _ = fmt.Fprintf(w, "%s applied to %d/%d proxies in %.2f s\n", name, r.Accepted, r.Touched, r.Seconds)
	for _, x := range r.Rejected[:min(len(r.Rejected), maxShown)] {
		_, _ = fmt.Fprintf(w, "%s rejected it: %s: %s\n", x.Proxy, safetext.Sanitize(x.Name, 1024), safetext.Sanitize(x.Reason, 1024))
	}
	if more := len(r.Rejected) + r.RejectedMore - maxShown; more > 0 {
		_, _ = fmt.Fprintf(w, "… and %d more rejections: `fairlead proxy-status` lists each proxy\n", more)
	}
	return len(r.Rejected) > 0
}
