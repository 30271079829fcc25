package peers;

import java.lang.reflect.Field;

/**
 * Starts a broker that, as a follower, asks for its leader's tables ten seconds after its start.
 *
 * <p>RocketMQ 5 looks every three seconds, first after ten, and asks when the last time is a minute ago;
 * its start counts as the first time. Here that was long ago. What is asked and done is the broker's own.
 */
final class Tables {
    private Tables() {
    }

    static void start(String startup, String[] args) throws Exception {
        Class<?> main = Class.forName(startup);
        Object broker = main.getMethod("createBrokerController", String[].class).invoke(null, (Object) args);
        Field last = broker.getClass().getDeclaredField("lastSyncTimeMs");
        last.setAccessible(true);
        last.setLong(broker, 0);
        main.getMethod("start", broker.getClass()).invoke(null, broker);
    }
}
