package check

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// State is how serious a finding is.
type State string

// The states.
const (
	OK      State = "ok"
	Warning State = "warning" // it works, and will not always
	Fault   State = "fault"   // it does not work
	Unknown State = "unknown" // it could not be checked
)

// Finding is what a check found.
type Finding struct {
	// Check is its name, such as clock.
	Check string `json:"check"`
	State State  `json:"state"`
	// What was found, and what to Do; empty if it is ok.
	What string `json:"what"`
	Do   string `json:"do,omitempty"`
}

// Input is what the checks need to know of the agent.
type Input struct {
	// StateDir and RunDir are the agent's directories.
	StateDir, RunDir string
	// Token is the join token, or empty. TokenErr is why it could not be read.
	Token    string
	TokenErr error
	// Servers are HOST:PORT of the control plane; empty means those of the token, or of the
	// agent's own record.
	Servers []string
	// Envoy is the binary; empty means the first usable one.
	Envoy string
	// Environ is the environment of Envoy.
	Environ []string
	// Address is the host's address in the mesh, or the zero value.
	Address netip.Addr
	// Capture says that the agent has Envoy listen for captured connections, as far as these settings
	// know: a running agent knows better.
	Capture bool
	// Ports are where Envoy and the agent will listen besides, if the agent does not run, and Usual
	// where they will listen if nobody else does: otherwise the agent takes free ports.
	Ports, Usual []netip.AddrPort
	// ResolvConf names the host's nameservers; empty means /etc/resolv.conf. DNSPort is theirs; zero
	// means 53.
	ResolvConf string
	DNSPort    uint16
	// Ask asks the running agent. It returns an error if none runs.
	Ask func(ctx context.Context) (Agent, error)
	// AskCapture asks the kernel and the service what is captured; nil means that nobody is asked.
	AskCapture func(ctx context.Context) (Capture, error)
	// Version is that of this program.
	Version string
	// Now is the host's clock.
	Now func() time.Time
}

// Agent is what a running agent says of itself.
type Agent struct {
	// Server is the control plane that is connected, or empty. Refusal is what it said last where it did not
	// let the host in, or empty.
	Server, Refusal string
	// Address is the one by which the agent names the host, or the zero value.
	Address netip.Addr
	// NotReady says why the workload cannot be reached, and Problems what else needs action.
	NotReady, Problems []string
	// Capture says whether it runs with --capture; nil if it does not say.
	Capture *bool
	// Version is the agent's, and Envoy the one of its Envoy; empty if it does not say.
	Version, Envoy string
}

// run is one run of all checks.
type run struct {
	Input
	agent    Agent
	agentErr error
	// installed is the version of the Envoy that the agent would start, or empty.
	installed string
	found     []Finding
}

func (r *run) add(check string, s State, what, do string) {
	r.found = append(r.found, Finding{Check: check, State: s, What: what, Do: do})
}

// Run runs all checks, each for at most some seconds.
func Run(ctx context.Context, in Input) []Finding {
	r := &run{Input: in}
	r.agent, r.agentErr = in.Ask(ctx)
	for _, c := range []func(context.Context){
		r.agentRuns, r.clock, r.disk, r.identity, r.address, r.servers, r.names, r.envoy, r.versions, r.ports, r.privilege, r.descriptors, r.security, r.capture,
	} {
		c(ctx)
	}
	return r.found
}

// Well reports whether no finding is a fault.
func Well(found []Finding) bool {
	return !slices.ContainsFunc(found, func(f Finding) bool { return f.State == Fault })
}
