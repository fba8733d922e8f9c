package agent

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

const (
	// credentialPeriod is how often it is checked whether credentials stand as reported. Their states
	// depend on the time, too.
	credentialPeriod = 2 * time.Second
	// problemPeriod is how often Envoy is asked how it is. Problems are reported after half a minute.
	problemPeriod = 5 * time.Second
)

// reportHost reports to the control plane how the host's credentials stand, and what is wrong with the
// host, until ctx ends.
func (a *Agent) reportHost(ctx context.Context, credentials func() []workload.Credential, report func(bootstrap.Credentials)) {
	ticker := time.NewTicker(credentialPeriod)
	defer ticker.Stop()
	var last bootstrap.Credentials
	var problems lasting
	var texts []string
	var asked time.Time
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		var list []bootstrap.Credential
		for _, c := range credentials() {
			reason := c.Reason
			if reason == "" && len(c.Warnings) > 0 {
				reason = c.Warnings[0]
			}
			list = append(list, bootstrap.Credential{Name: c.Name, State: string(c.State), Reason: reason, Served: c.Served, NotAfter: c.NotAfter})
		}
		now := bootstrap.ReportCredentials(list)
		if at := time.Now(); at.Sub(asked) >= problemPeriod {
			asked, texts = at, append(problems.of(a.hostProblems(ctx), at), a.droppedReports()...)
		}
		now.SetProblems(texts)
		if !now.Equal(&last) {
			report(now)
			last = now
		}
	}
}

// droppedReports are collectors that take no spans or logs of Envoy. They come last: no request fails. One
// is named only after half a minute, and until nothing was dropped for a minute.
func (a *Agent) droppedReports() []string {
	a.mu.Lock()
	reports := a.reports
	a.mu.Unlock()
	if reports == nil {
		return nil
	}
	return reports.Status().Problems()
}

// A problem is reported when it has lasted for problemPatience, as the server waits with its own
// conditions: what is shorter is a start, a restart, or an upgrade. One that is away for less than
// problemPause has not ended: an Envoy that crashes at each start runs between.
const (
	problemPatience = 30 * time.Second
	problemPause    = 15 * time.Second
)

// lasting knows for how long problems have been there.
type lasting struct{ first, seen map[string]time.Time }

// of are those of the problems that are there now which have lasted, for the control plane.
func (l *lasting) of(problems []problem, now time.Time) (out []string) {
	if l.first == nil {
		l.first, l.seen = map[string]time.Time{}, map[string]time.Time{}
	}
	maps.DeleteFunc(l.first, func(what string, _ time.Time) bool { return now.Sub(l.seen[what]) > problemPause })
	maps.DeleteFunc(l.seen, func(what string, _ time.Time) bool { return l.first[what].IsZero() })
	for _, p := range problems {
		what := p.same()
		if l.first[what].IsZero() {
			l.first[what] = now
		}
		if l.seen[what] = now; p.lasted || now.Sub(l.first[what]) >= problemPatience {
			out = append(out, p.forControlPlane())
		}
	}
	return out
}

// credentialRemarks say which credentials cannot be used, and why; the first few.
func credentialRemarks(list []workload.Credential) (out []string) {
	const most = 16
	more := 0
	for _, c := range list {
		var lines []string
		if c.State != credential.Ready {
			lines = append(lines, string(c.State)+": "+c.Reason)
		}
		lines = append(lines, c.Warnings...)
		for _, line := range lines {
			if len(out) < most {
				out = append(out, fmt.Sprintf("credential %s: %s", c.Name, line))
			} else {
				more++
			}
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("there are %d more problems of credentials, which the status has", more))
	}
	return out
}
