package check

import (
	"context"
	"fmt"
)

// Capture is what is known of packet capture on the host.
type Capture struct {
	// Present says that connections are captured.
	Present bool
	// Wrong is what is not as declared, and Firewall what other tables do to captured connections.
	Wrong, Firewall []string
}

// capture compares packet capture with what is declared, and with the agent's settings.
func (r *run) capture(ctx context.Context) {
	if r.AskCapture == nil {
		return
	}
	// What the agent runs with counts; the settings of this command may be others.
	asked, known := r.Capture, false
	if r.agentErr == nil && r.agent.Capture != nil {
		asked, known = *r.agent.Capture, true
	}
	c, err := r.AskCapture(ctx)
	switch {
	case err != nil && !asked:
		return // it is not asked for, and only root can see it
	case err != nil:
		r.add("capture", Unknown, fmt.Sprintf("asking the kernel what is captured: %v", err), "run this command as root")
		return
	case !asked && c.Present && known:
		r.add("capture", Fault, "connections of this host are captured, and the agent runs without --capture: Envoy does not listen for them",
			"set capture: true for the agent and restart it, or run `fairlead capture remove`")
		return
	case !asked && c.Present:
		r.add("capture", Warning, "connections of this host are captured, and these settings are without --capture: an agent with them would not have Envoy listen for them",
			"run this command with the agent's settings (--settings); if they are these, set capture: true, or run `fairlead capture remove`")
		return
	case !asked:
		return
	}
	for _, text := range c.Wrong {
		r.add("capture", Fault, text, "`fairlead capture plan` says what would be captured, `fairlead capture apply` and `fairlead capture confirm` do it; docs/capture.md has the message")
	}
	if len(c.Wrong) == 0 {
		r.add("capture", OK, "as declared", "")
	}
	for _, text := range c.Firewall {
		r.add("firewall", Warning, text, "change the firewall, or what is captured; docs/capture.md has the message")
	}
	if len(c.Firewall) == 0 {
		r.add("firewall", OK, "no other table stands in the way of captured connections", "")
	}
}

// versions compares what runs with what is installed.
func (r *run) versions(context.Context) {
	switch {
	case r.agentErr != nil || r.agent.Version == "":
		r.add("versions", OK, "fairlead "+r.Version, "")
	case r.agent.Version != r.Version:
		r.add("versions", Warning, fmt.Sprintf("the agent that runs is fairlead %s, and this program is %s", r.agent.Version, r.Version), "restart the agent: systemctl restart fairlead-agent")
	default:
		r.add("versions", OK, fmt.Sprintf("fairlead %s, as the agent that runs", r.Version), "")
	}
	if r.agentErr == nil && r.agent.Envoy != "" && r.installed != "" && r.agent.Envoy != r.installed {
		r.add("versions", Warning, fmt.Sprintf("the Envoy that runs is %s, and the one that is installed is %s", r.agent.Envoy, r.installed), "restart the agent: systemctl restart fairlead-agent")
	}
}
