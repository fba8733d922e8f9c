package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/peeraddr"
)

// RefusedRow is what people see of the refusals of one host, or of all peers that have proved
// nothing: whoever invents names or addresses gets one row, and hides nobody.
type RefusedRow struct {
	Refused // the newest, with the count of all

	// Peers are the addresses, the newest first.
	Peers []string
	// Reasons is how many different reasons there are.
	Reasons int
}

// RefusedRows sums refusals up: those of hosts first, each list by the newest.
func RefusedRows(list []Refused) []RefusedRow {
	type of struct{ host, what string }
	type reason struct {
		of
		text string
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Refused) int { return b.Last.Compare(a.Last) })
	var out []RefusedRow
	at, seen := map[of]int{}, map[reason]bool{}
	for _, r := range list {
		whose := of{r.Host, r.What}
		i, known := at[whose]
		if !known {
			i = len(out)
			at[whose] = i
			out = append(out, RefusedRow{Refused: r})
			out[i].Count = 0
		}
		row := &out[i]
		row.Count += r.Count
		if p := peeraddr.Group(r.Peer); r.Peer != "" && !slices.ContainsFunc(row.Peers, func(o string) bool { return peeraddr.Group(o) == p }) {
			row.Peers = append(row.Peers, peeraddr.Host(r.Peer))
		}
		if !seen[reason{whose, r.Reason}] {
			seen[reason{whose, r.Reason}] = true
			row.Reasons++
		}
	}
	slices.SortStableFunc(out, func(a, b RefusedRow) int {
		switch {
		case a.Host != "" && b.Host == "":
			return -1
		case a.Host == "" && b.Host != "":
			return 1
		}
		return 0
	})
	return out
}

// Who is the peer for people.
func (r *RefusedRow) Who() string {
	switch {
	case r.Host != "":
		return "host " + r.Host
	case len(r.Peers) > 1:
		return fmt.Sprintf("%d unknown peers", len(r.Peers))
	default:
		return "unknown peer " + r.Peer
	}
}

// Why is the newest reason, and how many others there are.
func (r *RefusedRow) Why() string {
	if r.Reasons > 1 {
		return fmt.Sprintf("%s; %s in `fairlead proxy-status -o json`", r.Reason, amount(r.Reasons-1, "other reason"))
	}
	return r.Reason
}

// forget is the command that forgets the refusals.
func (r *RefusedRow) forget() string {
	switch {
	case r.Host != "":
		return "fairlead host forget " + r.Host
	case len(r.Peers) > 1:
		return "fairlead host forget ADDRESS` or `fairlead host forget --all"
	default:
		return "fairlead host forget " + peeraddr.Host(r.Peer)
	}
}

func refusedPeers(p *Proxies, _ *Sources, now time.Time) (out []Condition) {
	for _, r := range RefusedRows(p.Refused) {
		who, verb := r.Who(), "is"
		if r.Host == "" && len(r.Peers) > 1 {
			verb = "are"
		}
		text := fmt.Sprintf("%s %s refused a %s, %s, last %s ago", who, verb, r.What, times(r.Count), lasting(now, r.Last))
		if r.Host == "" && len(r.Peers) > 1 {
			text += " from " + names(r.Peers, 3)
		}
		out = append(out, Condition{
			Subject: who, Host: r.Host,
			Text:   text + ": " + r.Why(),
			Action: "correct what the reason names (docs/troubleshooting.md, \"A host does not join\"); if it was a mistake that is over: `" + r.forget() + "`",
		})
	}
	return out
}
