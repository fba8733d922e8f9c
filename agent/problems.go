package agent

import (
	"fmt"
	"strconv"
	"strings"
)

// problemKind is one of the ways in which requests of this host fail, or will. Each has its words and its
// cure in problemTexts.
type problemKind int

const (
	noIdentity problemKind = iota
	envoyStarts
	envoyCannotStart
	envoyExited
	noDescriptors
	endsEnvoy
	drainedByOthers
	noConfiguration
	noAdminSocket
	adminSocketRefuses
	adminSocketRemoved
	envoyStopped
	envoyWaits
	envoyBusy
	envoyFrozen
	envoyUnknown
	connectionsRefused
	requestsRefused
	connectionsClosed
	noInbound
	certificateExpired
	noNames
	socketProblem
	fileUnsaved
	numProblems
)

// problemText is what people read of one kind. The verbs of says and cure take the arguments of a problem,
// those of the cure by their index.
type problemText struct {
	says, cure string
	// elsewhere says why the control plane is not told by this way; empty if it is told.
	elsewhere string
}

// problemTexts are all of them, by their kind.
func problemTexts() [numProblems]problemText {
	const (
		aStart       = "it is so at each start"
		heap         = "it uses nearly all of the %[1]d MiB that it may have"
		moreMemory   = "raise --envoy-max-heap-mib, or give the host more memory"
		newEnvoy     = "`kill -KILL %[1]d` has it started anew"
		ifThisStays  = "if this stays, restart the agent"
		doesNotReply = "Envoy (process %[1]d) does not answer"
	)
	return [numProblems]problemText{
		noIdentity:       {"no identity yet: %[1]s", "`fairlead agent check` says what is missing, such as a join token or the control plane", aStart},
		envoyStarts:      {"Envoy is not running", "the agent starts it by itself; if this stays, `journalctl -u fairlead-agent` says why", ""},
		envoyCannotStart: {"Envoy is not running: %[1]s", "correct what this names; the agent tries again by itself", ""},
		envoyExited:      {"Envoy is not running: its last exit was %[1]s", "envoy.log in the agent's run directory says why; the agent starts it again by itself", ""},
		noDescriptors: {
			"the agent cannot open another file or connection%[1]s; it cannot tell how Envoy is",
			"raise LimitNOFILE (ulimit -n) and restart the agent, or end who keeps connections to it open", "",
		},
		endsEnvoy: {"Envoy is draining and ends connections: the agent stops or replaces it", "", "it is so at each replacement, and at the end"},
		drainedByOthers: {
			"Envoy is draining and ends connections, and not because of this agent: somebody told it to by its admin interface (/healthcheck/fail, /drain_listeners)",
			"restart the agent and its Envoy", "",
		},
		noConfiguration:    {"Envoy has no configuration yet", "", aStart},
		noAdminSocket:      {"Envoy's admin socket does not exist, and Envoy has not connected to the agent: it starts, or the socket was removed", ifThisStays, ""},
		adminSocketRefuses: {"Envoy does not listen at its admin interface: it has just ended, or another process made the socket anew", ifThisStays, ""},
		adminSocketRemoved: {
			"Envoy's admin socket was removed. Envoy runs and serves traffic, but its ports for metrics and health, config_dump and draining do not work",
			"restart the agent at a quiet time, and exclude the run directory from cleaners of temporary files", "",
		},
		envoyStopped: {
			doesNotReply + ": it is stopped (by SIGSTOP, or a debugger) and serves nothing",
			"`kill -CONT %[1]d` lets it run, " + newEnvoy, "",
		},
		envoyWaits: {
			doesNotReply + ": it waits for a disk or for the kernel, or is frozen by its control group",
			"repair the disk, or thaw the control group; `cat /proc/%[1]d/wchan` (as root) says what it waits for", "",
		},
		envoyBusy:          {doesNotReply + ": it is busy, or gets no CPU", "check the load of the host and the CPU limit of the control group", ""},
		envoyFrozen:        {doesNotReply + ": it is frozen or blocked", newEnvoy, ""},
		envoyUnknown:       {"asking Envoy how it is: %[1]s", ifThisStays + "; envoy.log in its run directory may say why", ""},
		connectionsRefused: {"Envoy refuses new connections: " + heap, moreMemory, ""},
		requestsRefused:    {"Envoy answers new requests with 503: " + heap, moreMemory, ""},
		connectionsClosed: {
			"Envoy closes new connections: it has the %[1]d that it may have",
			"raise --envoy-max-connections, or find out who keeps them open", "",
		},
		noInbound: {"%[1]s", "%[2]s", "the relay reports it"},
		certificateExpired: {
			"the workload's certificate expired at %[1]s and peers refuse it: %[2]s",
			"`fairlead agent check` says what keeps the agent from the control plane, which renews it", "",
		},
		noNames:       {"the agent's DNS has no names yet", "connect the control plane, which sends them; `fairlead agent check` says what keeps the agent from it", ""},
		socketProblem: {"%[1]s", "correct what this names; the agent makes the socket again by itself", ""},
		fileUnsaved:   {"%[1]s could not be saved (in use; lost by a restart): %[2]s", "free space on the disk of %[3]s, or correct its rights", ""},
	}
}

// problem is one that this host has now.
type problem struct {
	kind problemKind
	// args are those of the texts: numbers and strings.
	args []any
	// lasted says that it has been there for long enough to be reported.
	lasted bool
}

func problemOf(kind problemKind, args ...any) problem { return problem{kind: kind, args: args} }

// String is for people who ask this host.
func (p problem) String() string {
	t := problemTexts()[p.kind]
	text := fillIn(t.says, p.args)
	if t.cure != "" {
		text += "; " + fillIn(t.cure, p.args)
	}
	return text
}

// forControlPlane is for the report, which cuts off what is too long: the cure comes last, and must not
// be lost by it.
func (p problem) forControlPlane() string {
	const longest = 120 // bytes of an argument; a problem has three at most
	short := problem{kind: p.kind}
	for _, a := range p.args {
		if text, ok := a.(string); ok && len(text) > longest {
			a = strings.ToValidUTF8(text[:longest], "") + "…"
		}
		short.args = append(short.args, a)
	}
	return short.String()
}

// same is equal for a problem that goes on, although its details change.
func (p problem) same() string {
	switch p.kind {
	case socketProblem, fileUnsaved: // there may be several
		return fmt.Sprint(int(p.kind), p.args[0])
	default:
		return strconv.Itoa(int(p.kind))
	}
}

// fillIn is a text without verbs, or with those arguments that its verbs name.
func fillIn(text string, args []any) string {
	if !strings.Contains(text, "%") {
		return text
	}
	return fmt.Sprintf(text, args...)
}

// asTexts are problems for people who ask this host.
func asTexts(list []problem) (out []string) {
	for _, p := range list {
		out = append(out, p.String())
	}
	return out
}
