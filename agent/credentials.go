package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// credentialPeriod is how often it is checked whether credentials stand as reported. Their states
// depend on the time, too.
const credentialPeriod = 2 * time.Second

// reportHost reports to the control plane how the host's credentials stand, and what is wrong with the
// host, until ctx ends.
func (a *Agent) reportHost(ctx context.Context, credentials func() []workload.Credential, report func(bootstrap.Credentials)) {
	ticker := time.NewTicker(credentialPeriod)
	defer ticker.Stop()
	var last bootstrap.Credentials
	var before []string
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
		// What lasts for less than a period is a start, or a restart.
		problems := a.hostProblems(ctx)
		lasting := slices.DeleteFunc(slices.Clone(problems), func(p string) bool { return !slices.Contains(before, p) })
		before = problems
		now.SetProblems(append(lasting, a.droppedReports()...))
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
