package deadletter

// Message is a letter as a queue hands it out.
type Message struct {
	ID   string // the queue's
	Body []byte // for Parse
	// Receipt names this receipt of the message.
	Receipt string
}
