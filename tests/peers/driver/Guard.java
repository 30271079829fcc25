package peers;

import java.util.Arrays;

/** Runs another class's main, and halts the JVM when whoever started it is gone. */
public final class Guard {
    private Guard() {
    }

    public static void main(String[] args) throws Exception {
        watchStandardInput();
        Runtime.getRuntime().addShutdownHook(new Thread(Hurry::always, "hurry-hook"));
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        if (Boolean.getBoolean("peers.tables.soon")) {
            Tables.start(args[0], rest);
            return;
        }
        Class.forName(args[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
    }

    private static void watchStandardInput() {
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // Nothing is ever sent: only the end of the stream matters.
                }
            } catch (java.io.IOException closed) {
                // The same as an end.
            }
            Runtime.getRuntime().halt(3);
        }, "guard");
        watch.setDaemon(true);
        watch.start();
    }
}
