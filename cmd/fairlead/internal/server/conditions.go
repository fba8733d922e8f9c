package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
)

// Condition is one thing about the mesh that needs a person.
type Condition struct {
	// Reason is the name of the kind, one of Reasons.
	Reason string `json:"reason"`
	// Subject is what it is about: a proxy, a host, a source, a peer.
	Subject string `json:"subject"`
	// Text says what is wrong, Action what a person does about it.
	Text   string `json:"text"`
	Action string `json:"action"`
	// Proxy and Host are those that it is about, if it is about one.
	Proxy string `json:"proxy,omitempty"`
	Host  string `json:"host,omitempty"`
	// Others is how many there are of which this one only says the number; 0 if it is about one.
	Others int `json:"others,omitempty"`
}

// Amount is how many conditions there are in a list, those that are only counted too.
func Amount(list []Condition) (n int) {
	for i := range list {
		n += max(1, list[i].Others)
	}
	return n
}

// patience is how long a proxy may take to answer until that is a condition: a change on
// its way needs nobody.
const patience = 30 * time.Second

// ruleOf is one kind of condition, and finds those of it.
type ruleOf struct {
	reason string
	find   func(p *Proxies, s *Sources, now time.Time) []Condition
}

// rules are all kinds of conditions, in the order in which they are listed: first what
// concerns everybody.
func rules() []ruleOf {
	return slices.Concat([]ruleOf{
		{"not-ready", notReady},
		{"slow-merge", slowMerges},
		{"clock", wrongClock},
		{"source-unavailable", unavailable},
		{"source-stale", stale},
		{"manifest-error", manifestErrors},
		{"removal-held", heldRemovals},
		{"issuer-keys", issuerKeys},
		{"network-gateway", networkGateways},
	}, findingRules(), []ruleOf{
		{"consul-denied", consulDenied},
		{"consul-unreadable", consulUnreadable},
		{"state-damaged", stateDamaged},
		{"state-unsaved", stateUnsaved},
		{"host-grants", hostGrantsOpen},
		{"host-absent", absentHosts},
		{"host-fault", hostFaults},
		{"agent-gone", goneAgents},
		{"unhealthy", unhealthy},
		{"host-problem", hostProblems},
		{"rejected", rejected},
		{"stale", staleProxies},
		{"not-synced", notSynced},
		{"no-inbound", noInbound},
		{"credential", unusableCredentials},
		{"claim-conflict", claimConflicts},
		{"refused", refusedPeers},
	})
}

// Reasons are the names of all kinds of conditions.
func Reasons() []string {
	var out []string
	for _, r := range rules() {
		out = append(out, r.reason)
	}
	return out
}

// Conditions are what needs a person. Everything that says whether the mesh is well takes it
// from here: proxy-status, its exit code, the metric and /readyz.
func Conditions(p *Proxies, s *Sources, now time.Time) []Condition {
	var out []Condition
	for _, r := range rules() {
		for _, c := range r.find(p, s, now) {
			c.Reason = r.reason
			c.Subject, c.Text, c.Action = safetext.Sanitize(c.Subject, 256), safetext.Sanitize(c.Text, 1024), safetext.Sanitize(c.Action, 1024)
			out = append(out, c)
		}
	}
	return out
}

// lines makes a condition of each line.
func lines(subject string, list []string, action string) (out []Condition) {
	for _, line := range list {
		out = append(out, Condition{Subject: subject, Text: line, Action: action})
	}
	return out
}

func notReady(_ *Proxies, s *Sources, _ time.Time) []Condition {
	return lines("server", s.NotReady, "repair what the reason names, or look at the server's log; hosts keep their last configuration until it is ready")
}

// slowMergeAfter is how long a merge of the sources may take until that is a condition: all changes wait
// for it.
const slowMergeAfter = 10 * time.Second

func slowMerges(_ *Proxies, s *Sources, now time.Time) []Condition {
	m := s.Registry.SlowMerge
	if m == nil || m.Lasted(now) < slowMergeAfter {
		return nil
	}
	text := "merging the sources has taken " + m.Lasted(now).Round(time.Second).String() + " so far, and all changes wait"
	if m.Took > 0 {
		text = "the last merge of the sources took " + m.Took.Round(time.Second).String()
	}
	var most []string
	for _, in := range m.Inputs {
		most = append(most, in.String())
	}
	return lines("server", []string{text + "; the largest sources are " + strings.Join(most, "; ")},
		"make the largest objects smaller (hosts × ports × endpoints), or bind their directory to namespaces, so that --max-expansion limits it; proxies keep their configuration, and the merge counts when it is done")
}

func wrongClock(_ *Proxies, s *Sources, _ time.Time) []Condition {
	if len(s.Clock) == 0 {
		return nil
	}
	return lines("server", []string{strings.Join(s.Clock, "; ")}, "set the clock that is wrong (`timedatectl`); `fairlead clock` compares them")
}

func unavailable(_ *Proxies, s *Sources, now time.Time) (out []Condition) {
	for _, src := range s.Files {
		if src.Reason == "" {
			continue
		}
		c := Condition{
			Subject: src.Source, Text: fmt.Sprintf("source %s is %s for %s: %s", src.Source, src.State, lasting(now, src.Since), src.Reason),
			Action: "make it readable for the server's user; what it said last stays in force until then",
		}
		if !src.Delivered { // policies included: hosts keep those that they have
			c.Action = "make it readable for the server's user; this server has never read it, so nothing of it is in force at hosts that are new"
		}
		out = append(out, c)
	}
	return out
}

func stale(_ *Proxies, s *Sources, _ time.Time) []Condition {
	return lines("consul", s.Old, "make Consul reachable from the server, with a token that is valid; the server then reads what changed by itself")
}

func manifestErrors(_ *Proxies, s *Sources, _ time.Time) (out []Condition) {
	for _, src := range s.Files {
		var errs []string
		for _, f := range src.Faults {
			switch {
			case f.Code == lastgood.CodeState: // of the state directory
			case f.Code == lastgood.CodeUnread && src.Reason != "": // that is why it is unavailable
			case f.Severity == manifest.Error:
				errs = append(errs, f.String())
			case f.Code == kv.CodeNoKeys: // a warning, and most likely a mistake
				out = append(out, Condition{
					Subject: src.Source, Text: fmt.Sprintf("source %s: %s", src.Source, f), Action: "run `fairlead config push`, or correct --consul-kv-prefix",
				})
			}
		}
		if len(errs) == 0 {
			continue
		}
		text := "manifests of " + src.Source + " have an error: " + errs[0]
		if len(errs) > 1 {
			text = fmt.Sprintf("manifests of %s have %d errors, the first is %s", src.Source, len(errs), errs[0])
		}
		out = append(out, Condition{
			Subject: src.Source, Text: text, Action: "correct the object at that line; `fairlead validate` checks a file, and docs/troubleshooting.md has the code",
		})
	}
	return out
}

func heldRemovals(_ *Proxies, s *Sources, now time.Time) (out []Condition) {
	for _, src := range s.Registry.Sources {
		if src.HeldCount == 0 {
			continue
		}
		text := fmt.Sprintf("%s of source %s on hold", amount(src.HeldCount, "removal"), src.Name)
		if len(src.Held) > 0 {
			h := src.Held[0]
			text += fmt.Sprintf(", the first is %s for %s (%s)", h.Key, lasting(now, h.Since), h.Reason)
		}
		out = append(out, Condition{
			Subject: src.Name, Text: text,
			Action: "if they were removed on purpose: `fairlead release " + src.Name + "`; else restore them in the source",
		})
	}
	return out
}

func consulDenied(_ *Proxies, s *Sources, _ time.Time) (out []Condition) {
	for i := range s.Consul {
		st := &s.Consul[i]
		if n := max(len(st.Denied), st.DeniedCount); n > 0 {
			out = append(out, Condition{
				Subject: st.Source, Text: fmt.Sprintf("the token of source %s lacks %s, the first is %s", st.Source, amount(n, "rule"), first(st.Denied)),
				Action: "add the rules to the token's policy in Consul, or put another token into --consul-token-file; no restart is needed",
			})
		}
	}
	return out
}

func consulUnreadable(_ *Proxies, s *Sources, _ time.Time) (out []Condition) {
	for i := range s.Consul {
		st := &s.Consul[i]
		if n := max(len(st.Unreadable), st.UnreadableCount); n > 0 {
			out = append(out, Condition{
				Subject: st.Source, Text: fmt.Sprintf("Consul's answers about %s of source %s cannot be used; what was known stays: %s", amount(n, "service"), st.Source, first(st.Unreadable)),
				Action: "correct these registrations in Consul",
			})
		}
	}
	return out
}

func first(list []string) string {
	if len(list) == 0 {
		return "unknown"
	}
	return list[0]
}

func stateDamaged(_ *Proxies, s *Sources, _ time.Time) (out []Condition) {
	for _, src := range s.Files {
		for _, f := range src.Faults {
			if f.Code == lastgood.CodeState {
				out = append(out, Condition{
					Subject: src.Source, Text: "source " + src.Source + ": " + f.String(),
					Action: "check the disk of --state-dir, and that each manifest is valid; then restart the server, which reads what it has saved since",
				})
			}
		}
	}
	for i := range s.Consul {
		st := &s.Consul[i]
		if st.StateFault == "" || st.Delivered && st.State == consul.Live && st.Unsaved == "" {
			continue // it was read again and saved: the damage is over
		}
		out = append(out, Condition{
			Subject: st.Source, Text: "source " + st.Source + ": " + st.StateFault,
			Action: "check the disk of --state-dir; this ends when Consul was read again and the catalog is saved",
		})
	}
	return out
}

func stateUnsaved(_ *Proxies, s *Sources, _ time.Time) []Condition {
	const action = "make --state-dir writable and free space on its disk; the server then saves by itself"
	var unsaved []string
	for _, line := range s.Unsaved {
		if !slices.ContainsFunc(s.Registry.Sources, func(src registry.SourceStatus) bool { // it waits for the release
			return src.HeldCount > 0 && strings.HasPrefix(line, "source "+src.Name+" is not saved")
		}) {
			unsaved = append(unsaved, line)
		}
	}
	out := lines("server", unsaved, action)
	for i := range s.Consul {
		st := &s.Consul[i]
		if st.Unsaved == "" || slices.ContainsFunc(s.Unsaved, func(line string) bool { return strings.Contains(line, st.Unsaved) }) {
			continue
		}
		out = append(out, Condition{Subject: st.Source, Text: "source " + st.Source + ": " + st.Unsaved, Action: action})
	}
	return out
}

// lasting is how long something has been so.
func lasting(now, since time.Time) string {
	if since.IsZero() {
		return "an unknown time"
	}
	if d := now.Sub(since); d >= time.Second {
		return d.Truncate(time.Second).String()
	}
	return "less than 1s"
}

// amount is "1 rule" or "2 rules".
func amount(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// times is how often something happened.
func times(n int) string {
	if n <= 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// names lists the first few of a list.
func names(list []string, few int) string {
	if len(list) <= few {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), len(list)-few)
}

// byReason counts conditions.
func byReason(list []Condition) map[string]int {
	count := map[string]int{}
	for _, c := range list {
		count[c.Reason] += max(1, c.Others)
	}
	return count
}

// sum is all conditions as one line for /readyz, without names: everybody may read it.
func sum(list []Condition) string {
	if len(list) == 0 {
		return ""
	}
	count := byReason(list)
	var parts []string
	for _, reason := range Reasons() {
		if n := count[reason]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", reason, n))
		}
	}
	return fmt.Sprintf("unwell: %s; `fairlead proxy-status` says what to do", strings.Join(parts, ", "))
}

// dashed is a text, or a dash.
func dashed(s string) string { return cmp.Or(s, "-") }
